// A feeder: sends a chain to utxod, whatever part of it utxod has already. Usage: node feeder.js SOCKET
//
// The chain is generated here. Replace CHAIN by the blocks of your node.
"use strict";
const crypto = require("node:crypto");
const net = require("node:net");
const readline = require("node:readline");

const WINDOW = 100; // blocks that are sent ahead of their answers

// Returns 32 bytes as hex, the same for the same text.
const digest = (text) => crypto.createHash("sha256").update(text).digest("hex");

// Returns a block of the generated chain: each spends the output that the one before created.
function block(height) {
  const owner = "60" + digest(`owner ${height}`).slice(0, 56); // the raw address, as hex
  const inputs = height > 1 ? [[digest(`tx ${height - 1}`), 0]] : [];
  return {
    type: "BlockApplied",
    height,
    slot: 20 * height,
    hash: digest(`block ${height}`),
    prev_hash: digest(`block ${height - 1}`),
    txs: [{ txid: digest(`tx ${height}`), inputs, outputs: [{ address: owner, value: 1_000_000 }] }],
  };
}

const CHAIN = Array.from({ length: 300 }, (_, n) => block(n + 1));

// Yields a rollback, if the daemon has blocks of another branch, and then the blocks that it does not have.
function* messages(welcome) {
  const positions = new Map(CHAIN.map((each, n) => [each.hash, n]));
  const common = welcome.points.find((point) => positions.has(point.hash));
  if (common && common.hash !== welcome.tip.hash) yield { type: "Rollback", to: common };
  if (!common && welcome.tip) yield { type: "Rollback", to: "origin" };
  yield* CHAIN.slice(common ? positions.get(common.hash) + 1 : 0);
}

function stop(why) {
  console.error(why);
  process.exit(1);
}

// Feeds until the daemon has the whole chain.
async function main(path) {
  const daemon = net.connect(path);
  daemon.on("error", (error) => stop(error.message));
  const lines = readline.createInterface({ input: daemon })[Symbol.asyncIterator]();
  const send = (message) => daemon.write(JSON.stringify(message) + "\n");
  const receive = async () => {
    const { value, done } = await lines.next();
    return done ? stop("utxod closed the connection: start again to resume") : JSON.parse(value);
  };
  const acknowledged = async (seq) => {
    const answer = await receive();
    if (answer.type === "Error") stop(`${answer.code}: ${answer.message}`); // nothing was changed by that message
    if (answer.seq !== seq) stop("answers come in the order of the messages");
  };

  send({ type: "Hello", client: "example/1.0", network_tip: { height: CHAIN.at(-1).height } });
  const welcome = await receive();
  let sent = 0;
  for (const message of messages(welcome)) {
    send({ ...message, seq: ++sent });
    if (sent > WINDOW) await acknowledged(sent - WINDOW);
  }
  for (let seq = Math.max(sent - WINDOW, 0) + 1; seq <= sent; seq++) await acknowledged(seq);
  console.log(`${sent} messages are on disk, the tip is ${CHAIN.at(-1).height}`);
  daemon.end();
}

main(process.argv[2]);
