// A submitter: claims an output for a transaction that waits for a block. Usage: node submitter.js SOCKET TXID#INDEX
//
// It submits two transactions that spend the same output. The second is refused, and the answer names the transaction
// that has claimed the output.
// Then it withdraws the first, which only an operator or the feeder may do: the output can be claimed again.
"use strict";
const crypto = require("node:crypto");
const net = require("node:net");
const readline = require("node:readline");

const ADDRESS = "60" + "cc".repeat(28); // the raw address, as hex

// Returns a transaction that spends an output. Its id and its outputs come from your wallet.
function transaction(text, outpoint) {
  const txid = crypto.createHash("sha256").update(text).digest("hex");
  return { txid, inputs: [outpoint], outputs: [{ address: ADDRESS, value: 900_000 }], fee: 100_000 };
}

function stop(why) {
  console.error(why);
  process.exit(1);
}

// Submits two transactions for one output, and withdraws the first.
async function main(path, outpoint) {
  const daemon = net.connect(path);
  daemon.on("error", (error) => stop(error.message));
  const lines = readline.createInterface({ input: daemon })[Symbol.asyncIterator]();
  const request = async (message) => {
    daemon.write(JSON.stringify({ ...message, seq: 1 }) + "\n");
    const { value, done } = await lines.next();
    return done ? stop("utxod closed the connection") : JSON.parse(value);
  };

  for (const text of ["first", "second"]) {
    const answer = await request({ type: "TxSubmitted", tx: transaction(text, outpoint) });
    if (answer.type === "Ack") {
      console.log(text, answer.status); // on disk: accepted, or duplicate if it was there already
    } else if (answer.code === "UTXO_ERROR") {
      for (const fault of answer.detail.inputs) {
        console.log(text, fault.code, ...(fault.spender ? ["by", fault.spender[0]] : []));
      }
    } else {
      console.log(text, answer.code, answer.retryable ? "try again later" : answer.message);
    }
  }
  const first = transaction("first", outpoint).txid;
  const answer = await request({ type: "TxWithdrawn", txids: [first], reason: "operator" });
  console.log("withdrawn", answer.type === "Ack" ? answer.status : answer.code);
  daemon.end();
}

const [txid, index] = process.argv[3].split("#");
main(process.argv[2], [txid, Number(index)]);
