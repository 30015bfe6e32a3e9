// A subscriber: prints every fact that utxod commits, and resumes after an interruption.
//
// Usage: node subscriber.js SOCKET BOOKMARK
//
// The file BOOKMARK has the sequence of the last fact that was handled; the next start resumes after it.
"use strict";
const fs = require("node:fs");
const net = require("node:net");
const readline = require("node:readline");

// Handles one fact. A fact may be sent again after a crash between this and the bookmark.
function handle(fact) {
  switch (fact.type) {
    case "BlockCommitted":
      return console.log("block", fact.height, fact.hash);
    case "RolledBack":
      return console.log("rolled back to", fact.to === "origin" ? fact.to : fact.to.height);
    case "TxStatusChanged":
      return console.log("transaction", fact.txid, fact.status, fact.cause ? fact.cause.type : "None");
  }
}

function stop(why) {
  console.error(why);
  process.exit(1);
}

// Follows until the daemon disconnects.
function main(path, bookmark) {
  const last = fs.existsSync(bookmark) ? Number(fs.readFileSync(bookmark, "utf8")) : 0;
  const daemon = net.connect(path);
  daemon.on("error", (error) => stop(error.message));
  const events = ["BlockCommitted", "RolledBack", "TxStatusChanged"];
  daemon.write(JSON.stringify({ type: "Subscribe", seq: 1, events, from_sequence: last + 1 }) + "\n");
  readline.createInterface({ input: daemon }).on("line", (line) => {
    const message = JSON.parse(line);
    // `gone`: read the state again, and subscribe from `detail.oldest`
    if (message.type === "Error") stop(`${message.code}: ${message.message}`);
    if (message.type === "Ack") return;
    handle(message);
    fs.writeFileSync(bookmark + ".new", String(message.sequence));
    fs.renameSync(bookmark + ".new", bookmark); // atomic: a kill leaves the old file or the new one
  });
}

main(process.argv[2], process.argv[3]);
