// What @bitcoinerlab/explorer finds about some addresses over Electrum and over Esplora: a line of JSON for each.
import { readFileSync } from "node:fs";
import { ElectrumExplorer, EsploraExplorer } from "@bitcoinerlab/explorer";
import { networks } from "bitcoinjs-lib";

const asked = JSON.parse(readFileSync(0, "utf8"));
const explorers = {
  electrum: new ElectrumExplorer({ host: "127.0.0.1", port: asked.electrum, protocol: "tcp", network: networks.regtest }),
  esplora: new EsploraExplorer({ url: asked.esplora }),
};

const found = [];
for (const [protocol, explorer] of Object.entries(explorers)) {
  await explorer.connect();
  const balances = {};
  const histories = {};
  for (const address of asked.addresses) {
    balances[address] = await explorer.fetchAddress(address);
    const history = await explorer.fetchTxHistory({ address });
    histories[address] = history.map(({ txId, blockHeight }) => [txId, blockHeight]);
  }
  const transactions = {};
  for (const [txid] of Object.values(histories).flat()) transactions[txid] = await explorer.fetchTx(txid);
  const height = await explorer.fetchBlockHeight();
  const block = await explorer.fetchBlockStatus(height);
  found.push({ protocol, balances, histories, transactions, height, block });
}
for (const each of found) {
  const explorer = explorers[each.protocol];
  const pushed = asked.push[each.protocol] && (await explorer.push(asked.push[each.protocol]));
  console.log(JSON.stringify({ ...each, pushed }));
  explorer.close();
}
