// Calls of blockfrost-js that are read from the input: a line of JSON for each answer.
import { readFileSync } from "node:fs";
import { BlockFrostAPI } from "@blockfrost/blockfrost-js";

const { url, calls } = JSON.parse(readFileSync(0, "utf8"));
const api = new BlockFrostAPI({ projectId: "any", customBackend: url, network: "preview", rateLimiter: false });
for (const [name, args] of calls) {
  try {
    console.log(JSON.stringify({ name, answer: await api[name](...args) }));
  } catch (error) {
    console.log(JSON.stringify({ name, error: String(error?.stack ?? error) }));
  }
}
