// A subscriber: prints what utxod commits, and misses nothing. Usage: node subscriber.js SOCKET BOOKMARK
//
// The file BOOKMARK keeps the sequence of the last fact that was dealt with: after any break it goes on behind it.
"use strict";
const fs = require("node:fs");
const net = require("node:net");
const readline = require("node:readline");

// Deals with one fact. A fact may come again after a crash between this and the bookmark.
function handle(fact) {
  switch (fact.type) {
    case "BlockCommitted":
      return console.log("block", fact.height, fact.hash);
    case "RolledBack":
      return console.log("back to", fact.to === "origin" ? fact.to : fact.to.height);
    case "TxStatusChanged":
      return console.log("transaction", fact.txid, fact.status, fact.cause ? fact.cause.type : "None");
  }
}

function stop(why) {
  console.error(why);
  process.exit(1);
}

// Follows until the daemon leaves.
function main(path, bookmark) {
  const last = fs.existsSync(bookmark) ? Number(fs.readFileSync(bookmark, "utf8")) : 0;
  const daemon = net.connect(path);
  daemon.on("error", (error) => stop(error.message));
  const events = ["BlockCommitted", "RolledBack", "TxStatusChanged"];
  daemon.write(JSON.stringify({ type: "Subscribe", seq: 1, events, from_sequence: last + 1 }) + "\n");
  readline.createInterface({ input: daemon }).on("line", (line) => {
    const heard = JSON.parse(line);
    // `gone`: read the state again, and subscribe from `detail.oldest`
    if (heard.type === "Error") stop(`${heard.code}: ${heard.message}`);
    if (heard.type === "Ack") return;
    handle(heard);
    fs.writeFileSync(bookmark + ".new", String(heard.sequence));
    fs.renameSync(bookmark + ".new", bookmark); // at once: a kill leaves the old one or the new one
  });
}

main(process.argv[2], process.argv[3]);
