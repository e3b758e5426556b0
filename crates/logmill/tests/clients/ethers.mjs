// ethers, as people use it.
//
//   node ethers.mjs read HTTP WS CONTRACT      prints what it reads, as one line of JSON
//   node ethers.mjs send HTTP WS NODE          sends to the node, waits through HTTP, prints how long that took each time
//   node ethers.mjs watch HTTP WS CONTRACT     prints "watching", then a line for all it hears of, until its input ends
import { Contract, JsonRpcProvider, Wallet, WebSocketProvider, id } from "ethers";

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
    // What a node answers through the server.
    balance: await provider.getBalance(address, last.blockNumber),
    code: await provider.getCode(address),
    state: await provider.call({ to: address, data: id("count()").slice(0, 10), blockTag: last.blockNumber }),
    revert: await provider
      .call({ to: address, data: id("fail()").slice(0, 10) })
      .catch(({ code, reason, data }) => ({ code, reason, data })),
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

// The first account of anvil, whose key everybody knows.
const KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";

async function send() {
  const node = new JsonRpcProvider(address);
  const waits = new JsonRpcProvider(httpUrl);
  const took = { beside: [], through: [] };
  for (const [how, by] of [["beside", node], ["through", waits]]) {
    const wallet = new Wallet(KEY, by);
    for (let value = 1; value <= 10; value++) {
      // ethers keeps answers for a quarter of a second.
      await new Promise((done) => setTimeout(done, 300));
      const sent = await wallet.sendTransaction({ to: wallet.address, value });
      const from = Date.now();
      const receipt = how === "beside"
        ? await waits.waitForTransaction(sent.hash, 1, 20000)
        : await sent.wait(1, 20000);
      if (receipt.hash !== sent.hash) throw new Error("another receipt");
      took[how].push(Date.now() - from);
    }
  }
  await say(took);
}

await { read, send, watch }[what]();
process.exit(0);
