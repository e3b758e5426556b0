// What Ponder's own example of an ERC-20 does for each transfer: a row, and two balances. As in Logmill's tables the zero
// address, which mints come from and burns go to, has no balance.
import { ponder } from "ponder:registry";
import { balance, transfer } from "ponder:schema";
import { zeroAddress } from "viem";

ponder.on("Coin:Transfer", async ({ event, context }) => {
  const { from, to, value } = event.args;
  await context.db.insert(transfer).values({
    id: event.id,
    from,
    to,
    value,
    timestamp: Number(event.block.timestamp),
  });
  if (from !== zeroAddress) {
    await context.db
      .insert(balance)
      .values({ account: from, value: -value })
      .onConflictDoUpdate((row) => ({ value: row.value - value }));
  }
  if (to !== zeroAddress) {
    await context.db
      .insert(balance)
      .values({ account: to, value })
      .onConflictDoUpdate((row) => ({ value: row.value + value }));
  }
});
