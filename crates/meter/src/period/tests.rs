//! Tests of periods: calendars against an independent library, keys and cycles.
