// The queries of the providers of Lucid Evolution, Blaze and Mesh: a line of JSON for each answer.
import { readFileSync } from "node:fs";
import { Unwrapped } from "@blaze-cardano/ogmios";
import { Blockfrost as BlazeBlockfrost, Kupmios as BlazeKupmios, Core } from "@blaze-cardano/sdk";
import { Blockfrost, Kupmios } from "@lucid-evolution/lucid";
import { BlockfrostProvider } from "@meshsdk/core";

const given = JSON.parse(readFileSync(0, "utf8"));
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
  await ask(name, "address", async () => places(await provider.getUtxos(given.address)));
  await ask(name, "credential", async () => places(await provider.getUtxos({ type: "Key", hash: given.credential })));
  await ask(name, "unit", async () => places(await provider.getUtxosWithUnit(given.address, given.unit)));
  await ask(name, "one", async () => places([await provider.getUtxoByUnit(given.only)]));
  await ask(name, "references", async () => places(await provider.getUtxosByOutRef([given.reference])));
  await ask(name, "datum", async () => provider.getDatum(given.datum_hash));
  await ask(name, "delegation", async () => provider.getDelegation(given.stake));
}

async function blaze(name, provider) {
  const address = Core.Address.fromBech32(given.address);
  const input = new Core.TransactionInput(Core.TransactionId(given.reference.txHash), BigInt(given.reference.outputIndex));
  const places = (utxos) => utxos.map((utxo) => [utxo.input().transactionId(), Number(utxo.input().index())]);
  await ask(name, "parameters", async () => (await provider.getParameters()).minFeeCoefficient);
  await ask(name, "address", async () => places(await provider.getUnspentOutputs(address)));
  await ask(name, "unit", async () => places(await provider.getUnspentOutputsWithAsset(address, Core.AssetId(given.unit))));
  await ask(name, "one", async () => places([await provider.getUnspentOutputByNFT(Core.AssetId(given.only))]));
  await ask(name, "references", async () => places(await provider.resolveUnspentOutputs([input])));
}

async function mesh(name, provider) {
  const places = (utxos) => utxos.map((utxo) => [utxo.input.txHash, utxo.input.outputIndex]);
  const { txHash, outputIndex } = given.reference;
  await ask(name, "parameters", async () => (await provider.fetchProtocolParameters()).minFeeA);
  await ask(name, "address", async () => places(await provider.fetchAddressUTxOs(given.address)));
  await ask(name, "unit", async () => places(await provider.fetchAddressUTxOs(given.address, given.unit)));
  await ask(name, "references", async () => places(await provider.fetchUTxOs(txHash, outputIndex)));
  await ask(name, "delegation", async () => {
    const account = await provider.fetchAccountInfo(given.stake);
    return { poolId: account.poolId, rewards: account.rewards };
  });
  await ask(name, "holders", async () => (await provider.fetchAssetAddresses(given.unit)).length);
  await ask(name, "collection", async () => (await provider.fetchCollectionAssets(given.unit.slice(0, 56))).assets.length);
  await ask(name, "block", async () => (await provider.fetchBlockInfo(given.block)).hash);
  await ask(name, "latest", async () => (await provider.fetchLatestBlock()).hash);
  await ask(name, "transaction", async () => {
    const info = await provider.fetchTxInfo(txHash);
    return [info.hash, info.outputs.length];
  });
  await ask(name, "transactions", async () => (await provider.fetchAddressTxs(given.address, { maxPage: 1, order: "asc" }))[0].hash);
  await ask(name, "costs", async () => (await provider.fetchCostModels()).length);
}

await lucid("lucid-kupmios", new Kupmios(given.kupo, given.ogmios));
await lucid("lucid-blockfrost", new Blockfrost(given.blockfrost, "any"));
await blaze("blaze-kupmios", new BlazeKupmios(given.kupo, await Unwrapped.Ogmios.new(given.ogmios.replace("http", "ws"))));
const blockfrost = new BlazeBlockfrost({ network: "cardano-preview", projectId: "any" });
blockfrost.url = given.blockfrost;
await blaze("blaze-blockfrost", blockfrost);
await mesh("mesh", new BlockfrostProvider(given.blockfrost));
process.exit(0);
