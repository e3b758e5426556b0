// viem, as people use it.
//
//   node viem.mjs read HTTP WS CONTRACT        prints what it reads, as one line of JSON
//   node viem.mjs watch HTTP WS CONTRACT       prints "watching", then a line for all it hears of, until its input ends
import { createPublicClient, http, parseAbiItem, webSocket } from "viem";

const [what, httpUrl, wsUrl, contract] = process.argv.slice(2);
const plain = (value) => JSON.stringify(value, (_, v) => (typeof v === "bigint" ? `${v}` : v));
const say = (value) => new Promise((done) => process.stdout.write(`${plain(value)}\n`, done));
const client = createPublicClient({ transport: http(httpUrl), pollingInterval: 50 });
const transfer = parseAbiItem(
  "event Transfer(address indexed from, address indexed to, uint256 value)",
);

async function read() {
  const blockNumber = await client.getBlockNumber({ cacheTime: 0 });
  const logs = await client.getLogs({
    address: contract,
    event: transfer,
    fromBlock: "earliest",
    toBlock: "latest",
  });
  const filter = await client.createEventFilter({
    address: contract,
    event: transfer,
    fromBlock: 0n,
    toBlock: "latest",
  });
  const last = logs.at(-1);
  const at = { blockNumber: last.blockNumber };
  const abi = [parseAbiItem("function count() view returns (uint256)"), parseAbiItem("function fail()")];
  const revert = (error) => error.walk((cause) => cause.name === "ContractFunctionRevertedError").reason;
  // Where no rewards are asked for, anvil has an empty list of them and other nodes have none.
  const { reward, ...fees } = await client.getFeeHistory({ blockCount: 4, rewardPercentiles: [], ...at });
  await say({
    chainId: await client.getChainId(),
    blockNumber,
    logs,
    filterLogs: await client.getFilterLogs({ filter }),
    removed: await client.uninstallFilter({ filter }),
    block: await client.getBlock({ includeTransactions: true, blockNumber: last.blockNumber }),
    byHash: await client.getBlock({ blockHash: last.blockHash }),
    finalized: await client.getBlock({ blockTag: "finalized" }),
    count: await client.getBlockTransactionCount({ blockNumber: last.blockNumber }),
    transaction: await client.getTransaction({ hash: last.transactionHash }),
    receipt: await client.getTransactionReceipt({ hash: last.transactionHash }),
    fees,
    // What a node answers through the server.
    state: await client.readContract({ address: contract, abi, functionName: "count", ...at }),
    balance: await client.getBalance({ address: contract, ...at }),
    code: await client.getCode({ address: contract, ...at }),
    nonce: await client.getTransactionCount({ address: last.args.from }),
    reason: await client.simulateContract({ address: contract, abi, functionName: "fail" }).catch(revert),
  });
}

async function watch() {
  const socket = createPublicClient({ transport: webSocket(wsUrl) });
  const hear = (by) => (logs) => {
    for (const { args, blockHash, removed } of logs) say({ by, value: args.value, blockHash, removed });
  };
  const onError = (error) => say({ error: `${error}` });
  const stops = [
    client.watchEvent({ address: contract, event: transfer, onLogs: hear("http"), onError }),
    socket.watchEvent({ address: contract, event: transfer, onLogs: hear("ws"), onError }),
    socket.watchBlocks({ onBlock: ({ number, hash }) => say({ by: "blocks", number, hash }), onError }),
  ];
  // The filter of the first is made when it first asks, the others when they are connected.
  await socket.getBlockNumber();
  await new Promise((done) => setTimeout(done, 400));
  say("watching");
  process.stdin.on("data", () => {});
  await new Promise((end) => process.stdin.on("end", end));
  for (const stop of stops) stop();
  process.exit(0);
}

await (what === "read" ? read() : watch());
process.exit(0);
