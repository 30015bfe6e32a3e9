// What wallets do with Lucid Evolution, Mesh and Blaze: pay, mint, lock an output with a script, and spend it.
//
// A wallet says `address ADDRESS` and waits for a line, after which the address has funds. It says `submitted TXID` and
// waits for a line, after which that transaction is in a block; then it waits until its library finds it confirmed.
import { createInterface } from "node:readline";

const [library, urls] = [process.argv[2], JSON.parse(process.argv[3])];
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const SEED = "test test test test test test test test test test test test test test test test test test test test test test test sauce";
const SCRIPT = "4e4d01000033222220051200120011"; // PlutusV2, always succeeds
const named = (number) => Buffer.from(`coin ${number}`).toString("hex");
const BLOCK_MS = 50; // how often a library asks whether a transaction is confirmed

async function say(text) {
  console.log(text);
  if ((await lines.next()).done) throw new Error(`nobody answers ${text}`);
}

async function until(found) {
  const end = Date.now() + 30_000;
  for (;;) {
    const value = await found();
    if (value) return value;
    if (Date.now() > end) throw new Error("the transaction is not confirmed");
    await new Promise((resolve) => setTimeout(resolve, BLOCK_MS));
  }
}

function check(holds, what) {
  if (!holds) throw new Error(what);
}

async function withLucid() {
  const { Blockfrost, Constr, Data, Kupmios, Lucid, mintingPolicyToId, paymentCredentialOf, scriptFromNative, validatorToAddress } =
    await import("@lucid-evolution/lucid");
  const providers = [new Kupmios(urls.kupo, urls.ogmios), new Blockfrost(urls.blockfrost, "any")];
  for (const [number, provider] of providers.entries()) {
    const coin = named(number);
    const lucid = await Lucid(provider, "Preview");
    lucid.selectWallet.fromSeed(SEED);
    const address = await lucid.wallet().address();
    await say(`address ${address}`);

    async function submit(made, more = {}) {
      const tx = await made.complete({ localUPLCEval: false, ...more });
      const txid = await (await tx.sign.withWallet().complete()).submit();
      await say(`submitted ${txid}`);
      check(await provider.awaitTx(txid, BLOCK_MS), "the transaction is not confirmed");
      return txid;
    }

    const native = scriptFromNative({ type: "sig", keyHash: paymentCredentialOf(address).hash });
    const unit = mintingPolicyToId(native) + coin;
    const validator = { type: "PlutusV2", script: SCRIPT };
    const locker = validatorToAddress("Preview", validator);
    await submit(lucid.newTx().pay.ToAddress(address, { lovelace: 3_000_000n }));
    await submit(lucid.newTx().mintAssets({ [unit]: 5n }).attach.MintingPolicy(native).pay.ToAddress(address, { lovelace: 3_000_000n, [unit]: 5n }));
    const held = await lucid.utxosAtWithUnit(address, unit);
    check(held.length === 1 && held[0].assets[unit] === 5n, "the minted tokens are not there");
    const unitDatum = Data.to(new Constr(0, []));
    const txid = await submit(lucid.newTx().pay.ToContract(locker, { kind: "inline", value: unitDatum }, { lovelace: 5_000_000n }));
    const [locked] = (await lucid.utxosAt(locker)).filter((utxo) => utxo.txHash === txid);
    check(locked.datum === unitDatum, `the datum is ${locked.datum}`);
    await submit(lucid.newTx().collectFrom([locked], unitDatum).attach.SpendingValidator(validator));
    check((await lucid.utxosAt(locker)).every((utxo) => utxo.txHash !== txid), "the output is not spent");
  }
}

async function withMesh() {
  const { BlockfrostProvider, ForgeScript, MeshTxBuilder, MeshWallet, deserializeAddress, mConStr0, resolveScriptHash, serializePlutusScript } =
    await import("@meshsdk/core");
  const provider = new BlockfrostProvider(urls.blockfrost);
  const coin = named(0);
  const wallet = new MeshWallet({ networkId: 0, fetcher: provider, submitter: provider, key: { type: "mnemonic", words: SEED.split(" ") } });
  await wallet.init();
  const address = await wallet.getChangeAddress();
  await say(`address ${address}`);

  const begun = async () =>
    new MeshTxBuilder({ fetcher: provider, submitter: provider, evaluator: provider })
      .setNetwork("preview")
      .changeAddress(address)
      .selectUtxosFrom(await provider.fetchAddressUTxOs(address));

  async function submit(builder) {
    const txid = await wallet.submitTx(await wallet.signTx(await builder.complete(), true));
    await say(`submitted ${txid}`);
    await until(async () => (await provider.fetchTxInfo(txid).catch(() => null))?.hash === txid);
    return txid;
  }

  await submit((await begun()).txOut(address, [{ unit: "lovelace", quantity: "3000000" }]));
  const policy = ForgeScript.withOneSignature(address);
  const policyId = resolveScriptHash(policy);
  const minted = [{ unit: "lovelace", quantity: "3000000" }, { unit: policyId + coin, quantity: "5" }];
  await submit((await begun()).mint("5", policyId, coin).mintingScript(policy).txOut(address, minted));
  const held = await provider.fetchAddressUTxOs(address, policyId + coin);
  check(held.length === 1, "the minted tokens are not there");
  const { address: locker } = serializePlutusScript({ code: SCRIPT, version: "V2" });
  const lovelace = [{ unit: "lovelace", quantity: "5000000" }];
  const txid = await submit((await begun()).txOut(locker, lovelace).txOutInlineDatumValue(mConStr0([])));
  const [locked] = await provider.fetchUTxOs(txid, 0);
  const [collateral] = (await provider.fetchAddressUTxOs(address)).filter((utxo) => utxo.output.amount.length === 1);
  const spending = (await begun())
    .spendingPlutusScriptV2()
    .txIn(txid, 0, locked.output.amount, locker)
    .txInInlineDatumPresent()
    .txInRedeemerValue(mConStr0([]))
    .txInScript(SCRIPT)
    .txInCollateral(collateral.input.txHash, collateral.input.outputIndex, collateral.output.amount, address)
    .requiredSignerHash(deserializeAddress(address).pubKeyHash);
  await submit(spending);
  check((await provider.fetchAddressUTxOs(locker)).every((utxo) => utxo.input.txHash !== txid), "the output is not spent");
}

async function withBlaze() {
  const { Blaze, Blockfrost, Core, HotWallet, Kupmios, makeValue } = await import("@blaze-cardano/sdk");
  const { Unwrapped } = await import("@blaze-cardano/ogmios");
  const ogmios = await Unwrapped.Ogmios.new(urls.ogmios.replace("http", "ws"));
  const blockfrost = new Blockfrost({ network: "cardano-preview", projectId: "any" });
  blockfrost.url = urls.blockfrost;
  Kupmios.confirmationTimeout = BLOCK_MS;
  const key = Core.Bip32PrivateKey.fromBip39Entropy(Buffer.from(Core.mnemonicToEntropy(SEED, Core.wordlist)), "");
  for (const [number, provider] of [new Kupmios(urls.kupo, ogmios), blockfrost].entries()) {
    const coin = named(number);
    const wallet = await HotWallet.fromMasterkey(key.hex(), provider, Core.NetworkId.Testnet);
    const blaze = await Blaze.from(provider, wallet);
    await say(`address ${wallet.address.toBech32()}`);

    async function submit(builder) {
      const signed = await blaze.signTransaction(await builder.complete());
      const txid = await blaze.submitTransaction(signed);
      await say(`submitted ${txid}`);
      check(await until(() => provider.awaitTransactionConfirmation(txid)), "the transaction is not confirmed");
      return txid;
    }

    await submit(blaze.newTransaction().payLovelace(wallet.address, 3_000_000n));
    const owner = wallet.address.getProps().paymentPart;
    const native = Core.Script.newNativeScript(Core.NativeScript.newScriptPubkey(new Core.ScriptPubkey(owner.hash)));
    const policy = Core.PolicyId(native.hash());
    const unit = Core.AssetId(policy + coin);
    await submit(
      blaze.newTransaction().addMint(policy, new Map([[coin, 5n]])).provideScript(native).payAssets(wallet.address, makeValue(3_000_000n, [unit, 5n])),
    );
    check((await provider.getUnspentOutputsWithAsset(wallet.address, unit)).length === 1, "the minted tokens are not there");
    const script = Core.Script.newPlutusV2Script(new Core.PlutusV2Script(SCRIPT));
    const locker = Core.addressFromValidator(Core.NetworkId.Testnet, script);
    const unitDatum = Core.PlutusData.fromCbor("d87980");
    const txid = await submit(blaze.newTransaction().lockLovelace(locker, 5_000_000n, unitDatum));
    const [locked] = (await provider.getUnspentOutputs(locker)).filter((utxo) => utxo.input().transactionId() === txid);
    check(locked.output().datum().asInlineData().toCbor() === "d87980", "the datum is another");
    await submit(blaze.newTransaction().useEvaluator(undefined).addInput(locked, unitDatum).provideScript(script));
    check((await provider.getUnspentOutputs(locker)).every((utxo) => utxo.input().transactionId() !== txid), "the output is not spent");
  }
}

await { lucid: withLucid, mesh: withMesh, blaze: withBlaze }[library]();
console.log("done");
process.exit(0);
