// Every question of the providers of Lucid Evolution, Blaze and blockfrost-js: a line of JSON for each answer.
import { readFileSync } from "node:fs";
import { Address, AssetId, NetworkId } from "@blaze-cardano/core";
import { Blockfrost as BlazeBlockfrost } from "@blaze-cardano/query";
import { BlockFrostAPI } from "@blockfrost/blockfrost-js";
import { Blockfrost, Kupmios } from "@lucid-evolution/provider";

const asked = JSON.parse(readFileSync(0, "utf8"));
const plain = (_, value) => (typeof value === "bigint" ? value.toString() : value instanceof Map ? [...value] : value);
const say = (client, call, result) => console.log(JSON.stringify({ client, call, result }, plain));

async function ask(client, call, question) {
  try {
    say(client, call, await question());
  } catch (error) {
    console.log(JSON.stringify({ client, call, error: String(error?.stack ?? error).slice(0, 2000), cause: String(error?.cause ?? "") }));
  }
}

async function lucid(name, provider) {
  const places = (utxos) => utxos.map((utxo) => [utxo.txHash, utxo.outputIndex]);
  await ask(name, "parameters", async () => (await provider.getProtocolParameters()).minFeeA);
  await ask(name, "address", async () => places(await provider.getUtxos(asked.address)));
  await ask(name, "credential", async () => places(await provider.getUtxos({ type: "Key", hash: asked.credential })));
  await ask(name, "unit", async () => places(await provider.getUtxosWithUnit(asked.address, asked.unit)));
  await ask(name, "one", async () => places([await provider.getUtxoByUnit(asked.only)]));
  await ask(name, "references", async () => places(await provider.getUtxosByOutRef([asked.reference])));
  await ask(name, "datum", async () => provider.getDatum(asked.datum_hash));
  await ask(name, "delegation", async () => provider.getDelegation(asked.stake));
}

await lucid("lucid-kupmios", new Kupmios(asked.kupo, asked.ogmios));
await lucid("lucid-blockfrost", new Blockfrost(asked.blockfrost, "any"));

const blaze = new BlazeBlockfrost({ network: "cardano-preview", projectId: "any" });
blaze.url = asked.blockfrost;
const cores = (utxos) => utxos.map((utxo) => [utxo.input().transactionId(), Number(utxo.input().index())]);
await ask("blaze", "parameters", async () => (await blaze.getParameters()).minFeeCoefficient);
await ask("blaze", "address", async () => cores(await blaze.getUnspentOutputs(Address.fromBech32(asked.address))));
await ask("blaze", "unit", async () => cores(await blaze.getUnspentOutputsWithAsset(Address.fromBech32(asked.address), AssetId(asked.unit))));
await ask("blaze", "one", async () => cores([await blaze.getUnspentOutputByNFT(AssetId(asked.only))]));

const api = new BlockFrostAPI({ projectId: "any", customBackend: asked.blockfrost, network: "preview" });
const found = (utxos) => utxos.map((utxo) => [utxo.tx_hash, utxo.output_index]);
await ask("blockfrost-js", "parameters", async () => (await api.epochsLatestParameters()).min_fee_a);
await ask("blockfrost-js", "address", async () => found(await api.addressesUtxosAll(asked.address)));
await ask("blockfrost-js", "unit", async () => found(await api.addressesUtxosAssetAll(asked.address, asked.unit)));
await ask("blockfrost-js", "block", async () => (await api.blocksLatest()).hash);
await ask("blockfrost-js", "genesis", async () => (await api.genesis()).network_magic);
await ask("blockfrost-js", "holders", async () => (await api.assetsAddresses(asked.unit)).length);
await ask("blockfrost-js", "transaction", async () => (await api.txsUtxos(asked.reference.txHash)).outputs.length);
void NetworkId;
