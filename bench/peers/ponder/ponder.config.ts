// The chain and the token that the benchmark names; the database is that of DATABASE_URL.
import { createConfig } from "ponder";
import { parseAbi } from "viem";

export default createConfig({
  chains: {
    anvil: { id: 31337, rpc: process.env.BENCH_RPC_URL },
  },
  contracts: {
    Coin: {
      chain: "anvil",
      abi: parseAbi([
        "event Transfer(address indexed from, address indexed to, uint256 value)",
      ]),
      address: process.env.BENCH_COIN as `0x${string}`,
      startBlock: 0,
    },
  },
});
