// Every transfer, and what every account has.
import { onchainTable } from "ponder";

export const transfer = onchainTable("transfer", (t) => ({
  id: t.text().primaryKey(),
  from: t.hex().notNull(),
  to: t.hex().notNull(),
  value: t.bigint().notNull(),
  timestamp: t.integer().notNull(),
}));

export const balance = onchainTable("balance", (t) => ({
  account: t.hex().primaryKey(),
  value: t.bigint().notNull(),
}));
