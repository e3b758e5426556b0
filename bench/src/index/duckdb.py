"""Serves one DuckDB file over standard input and output, for the benchmark of the log index.

A request is a line of JSON, followed by raw buffers if it has rows; an answer is a line of JSON, followed by the bytes
of the rows if they are requested. Times are taken here, so that they exclude the pipe and the encoding of rows, which
only serves the comparison.
"""

import json
import os
import struct
import sys
import time
import warnings

import duckdb
import pyarrow as pa

# DuckDB recommends `con.sql` over `execute` for Arrow; in a trial the best of 30 was the same for both.
warnings.filterwarnings("ignore", message="Arrow output")
# Other output, such as DuckDB's progress bar, must not mix with the answers.
stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

# Hash and time of the block are in every row: runs of equal values cost a column store almost nothing.
SCHEMA = """
CREATE TABLE blocks (number UBIGINT, hash BLOB);
CREATE TABLE logs (block UBIGINT, block_hash BLOB, timestamp UBIGINT, log_index UINTEGER,
    transaction_index UINTEGER, transaction_hash BLOB, address BLOB,
    topic0 BLOB, topic1 BLOB, topic2 BLOB, topic3 BLOB, data BLOB);
"""

WORD = pa.binary(32)
# Each column as (name, type, number of buffers).
LOGS = [
    ("block", pa.uint64(), 2), ("block_hash", WORD, 2), ("timestamp", pa.uint64(), 2),
    ("log_index", pa.uint32(), 2), ("transaction_index", pa.uint32(), 2),
    ("transaction_hash", WORD, 2), ("address", pa.binary(20), 2),
    ("topic0", WORD, 2), ("topic1", WORD, 2), ("topic2", WORD, 2), ("topic3", WORD, 2),
    ("data", pa.binary(), 3),
]
BLOCKS = [("number", pa.uint64(), 2), ("hash", WORD, 2)]


def read_table(columns, rows):
    """Returns the columns as Arrow arrays over the bytes read, without a copy."""
    arrays = []
    for _, kind, count in columns:
        buffers = []
        for _ in range(count):
            (length,) = struct.unpack("<q", stdin.read(8))
            buffers.append(pa.py_buffer(stdin.read(length)) if length >= 0 else None)
        arrays.append(pa.Array.from_buffers(kind, rows, buffers))
    return pa.Table.from_arrays(arrays, names=[name for name, _, _ in columns])


def ingest(db, request):
    logs = read_table(LOGS, request["logs"])
    blocks = read_table(BLOCKS, request["blocks"])
    start = time.perf_counter_ns()
    db.execute("BEGIN")
    db.register("blocks_new", blocks)
    db.register("logs_new", logs)
    db.execute("INSERT INTO blocks SELECT * FROM blocks_new")
    db.execute("INSERT INTO logs SELECT * FROM logs_new")
    db.execute("COMMIT")
    elapsed = time.perf_counter_ns() - start
    db.unregister("blocks_new")
    db.unregister("logs_new")
    return {"ns": elapsed}, b""


def query(db, request):
    terms = [bytes.fromhex(term) for term in request["terms"]]
    start = time.perf_counter_ns()
    first, last = request["first"], request["last"]
    if request["hash"]:
        found = db.execute("SELECT number FROM blocks WHERE hash = $1", [bytes.fromhex(request["hash"])])
        first = last = found.fetchone()[0]
    sql = request["sql"].replace("$first", str(first)).replace("$last", str(last))
    table = db.execute(sql, terms).to_arrow_table()
    elapsed = time.perf_counter_ns() - start
    limit = request["limit"]
    if limit and table.num_rows > limit:
        blocks = table.column("block").to_pylist()
        keep = blocks.index(blocks[limit])
        table = table.slice(0, keep or table.num_rows)
    encoded = encode(table) if request["logs"] else b""
    return {"ns": elapsed, "results": table.num_rows, "bytes": len(encoded)}, encoded


def encode(table):
    """Writes the same bytes as `answer::encode`."""
    rows = zip(*(column.to_pylist() for column in table.columns))
    parts = []
    for block, block_hash, timestamp, log_index, index, transaction, address, t0, t1, t2, t3, data in rows:
        parts += [struct.pack("<Q", block), block_hash, struct.pack("<QII", timestamp, log_index, index)]
        parts += [transaction, address]
        parts += [topic for topic in (t0, t1, t2, t3) if topic is not None]
        parts += [data, b"\n"]
    return b"".join(parts)


def run(db, request):
    start = time.perf_counter_ns()
    db.execute(request["sql"])
    return {"ns": time.perf_counter_ns() - start}, b""


def main():
    db = duckdb.connect(sys.argv[1], config=json.loads(sys.argv[2]))
    db.execute("SET enable_progress_bar = false")
    db.execute(SCHEMA)
    for column in json.loads(sys.argv[3]):
        db.execute(f"CREATE INDEX by_{column} ON logs ({column})")
    operations = {"ingest": ingest, "query": query, "run": run}
    hello = {"duckdb": duckdb.__version__, "pyarrow": pa.__version__}
    stdout.write(json.dumps(hello).encode() + b"\n")
    stdout.flush()
    for line in stdin:
        request = json.loads(line)
        answer, payload = operations[request["op"]](db, request)
        stdout.write(json.dumps(answer).encode() + b"\n" + payload)
        stdout.flush()
    db.close()


main()
