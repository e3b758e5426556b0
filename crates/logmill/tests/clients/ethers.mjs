// ethers, as people use it.
//
//   node ethers.mjs read HTTP WS CONTRACT      prints what it reads, as one line of JSON
//   node ethers.mjs watch HTTP WS CONTRACT     prints "watching", then a line for all it hears of, until its input ends
import { Contract, JsonRpcProvider, WebSocketProvider, id } from "ethers";

const [what, httpUrl, wsUrl, address] = process.argv.slice(2);
const plain = (value) => JSON.stringify(value, (_, v) => (typeof v === "bigint" ? `${v}` : v));
const say = (value) => new Promise((done) => process.stdout.write(`${plain(value)}\n`, done));
const provider = new JsonRpcProvider(httpUrl);
provider.pollingInterval = 50;
const topics = [id("Transfer(address,address,uint256)")];
const abi = ["event Transfer(address indexed from, address indexed to, uint256 value)"];

async function read() {
  const logs = await provider.getLogs({ address, topics, fromBlock: 0, toBlock: "latest" });
  const contract = new Contract(address, abi, provider);
  const events = await contract.queryFilter(contract.filters.Transfer(), 0, "latest");
  const last = logs.at(-1);
  const block = await provider.getBlock(last.blockNumber, true);
  await say({
    network: (await provider.getNetwork()).toJSON(),
    blockNumber: await provider.getBlockNumber(),
    logs: logs.map((log) => log.toJSON()),
    events: events.map((event) => [event.blockNumber, event.index, event.args.toArray()]),
    block: block.toJSON(),
    transactions: block.prefetchedTransactions.map((transaction) => transaction.toJSON()),
    byHash: (await provider.getBlock(last.blockHash)).toJSON(),
    transaction: (await provider.getTransaction(last.transactionHash)).toJSON(),
    receipt: (await provider.getTransactionReceipt(last.transactionHash)).toJSON(),
  });
}

async function watch() {
  const socket = new WebSocketProvider(wsUrl);
  const hear = (by) => ({ data, blockHash, removed }) =>
    say({ by, value: `${BigInt(data)}`, blockHash, removed });
  await provider.on({ address, topics }, hear("http"));
  await socket.on({ address, topics }, hear("ws"));
  await socket.on("block", (number) => say({ by: "blocks", number: `${number}` }));
  await socket.getBlockNumber();
  await new Promise((done) => setTimeout(done, 400));
  say("watching");
  process.stdin.on("data", () => {});
  await new Promise((end) => process.stdin.on("end", end));
  process.exit(0);
}

await (what === "read" ? read() : watch());
process.exit(0);
