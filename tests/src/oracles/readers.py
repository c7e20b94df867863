"""Reads flow records with an engine and prints JSON: column types, rows, and the numbers of rows with a name and since a time.

    readers.py ENGINE FOLDER COMMUNITY_ID MICROSECONDS
    readers.py ENGINE STORE                                  prints frames by sensor from the blocks and the flow records

Counts the rows with this community ID, and the rows whose flows began at MICROSECONDS since 1970 or later: each engine
excludes row groups in its own way, by statistics and by bloom filters. TZ must be UTC, because Spark returns local times.
"""

import contextlib
import datetime
import glob
import json
import sys

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def plain(value):
    """Converts a time to microseconds since 1970, because JSON has no type for times."""
    if not isinstance(value, datetime.datetime):
        return value
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.timezone.utc)
    return (value - EPOCH) // datetime.timedelta(microseconds=1)


def pyarrow(folder, name, us):
    import pyarrow
    from pyarrow import dataset

    flows = dataset.dataset(sorted(glob.glob(f"{folder}/*.parquet")))
    since = pyarrow.scalar(us, pyarrow.timestamp("us", tz="UTC"))
    return (
        [[it.name, str(it.type)] for it in flows.schema],
        [list(row.values()) for row in flows.to_table().to_pylist()],
        flows.count_rows(filter=dataset.field("community_id") == name),
        flows.count_rows(filter=dataset.field("first_fwd") >= since),
    )


def chdb(folder, name, us):
    import chdb

    def query(what, where="1"):
        sql = f"SELECT {what} FROM file('{folder}/*.parquet', Parquet) WHERE {where}"
        answer = chdb.query(f"{sql} SETTINGS output_format_json_quote_64bit_integers = 0", "JSONCompact")
        return json.loads(str(answer))

    types = [[it["name"], it["type"]] for it in query("*", "0")["meta"]]
    times = [f"toUnixTimestamp64Micro({name}) AS {name}" for name, kind in types if "DateTime" in kind]
    return (
        types,
        query(f"* REPLACE ({', '.join(times)})")["data"],
        query("count()", f"community_id = '{name}'")["data"][0][0],
        query("count()", f"first_fwd >= fromUnixTimestamp64Micro({us}, 'UTC')")["data"][0][0],
    )


@contextlib.contextmanager
def spark():
    from pyspark.sql import SparkSession

    yield SparkSession.builder.master("local[2]").getOrCreate()


@contextlib.contextmanager
def sail():
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer(port=0)
    server.start(background=True)
    host, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    yield session
    # Stop the session before the server, because it waits for an answer of the server.
    session.stop()
    server.stop()


def pyspark(folder, name, us):
    with spark() as session:
        return dataframe(session, folder, name, us)


def pysail(folder, name, us):
    with sail() as session:
        return dataframe(session, folder, name, us)


def dataframe(session, folder, name, us):
    flows = session.read.parquet(f"{folder}/*.parquet")
    return (
        flows.dtypes,
        [list(row) for row in flows.collect()],
        flows.where(f"community_id = '{name}'").count(),
        flows.where(f"first_fwd >= timestamp_micros({us})").count(),
    )


SUMS = {"blocks": "frames", "flows": "frames_fwd + frames_rev"}


def pyarrow_sums(store):
    from pyarrow import dataset

    sums = {}
    for table, what in SUMS.items():
        columns = what.split(" + ")
        rows = dataset.dataset(f"{store}/{table}", format="parquet", partitioning="hive").to_table(columns=["sensor", *columns])
        sums[table] = {}
        for row in rows.to_pylist():
            sums[table][row["sensor"]] = sums[table].get(row["sensor"], 0) + sum(row[it] for it in columns)
    return sums


def chdb_sums(store):
    import chdb

    def of(table, what):
        sql = f"SELECT sensor, sum({what}) FROM file('{store}/{table}/*/*/*/*.parquet', Parquet) GROUP BY sensor"
        answer = chdb.query(f"{sql} SETTINGS use_hive_partitioning = 1, output_format_json_quote_64bit_integers = 0", "JSONCompact")
        return dict(json.loads(str(answer))["data"])

    return {table: of(table, what) for table, what in SUMS.items()}


def pyspark_sums(store):
    with spark() as session:
        return dataframe_sums(session, store)


def pysail_sums(store):
    with sail() as session:
        return dataframe_sums(session, store)


def dataframe_sums(session, store):
    def of(table, what):
        rows = session.read.parquet(f"{store}/{table}").selectExpr("sensor", f"{what} AS n").groupBy("sensor").sum("n").collect()
        return {sensor: int(n) for sensor, n in rows}

    return {table: of(table, what) for table, what in SUMS.items()}


if len(sys.argv) == 3:
    print(json.dumps(globals()[f"{sys.argv[1]}_sums"](sys.argv[2])))
    sys.exit()
engine, folder, name, us = sys.argv[1:]
types, rows, named, since = globals()[engine](folder, name, int(us))
rows = [[plain(it) for it in row] for row in rows]
print(json.dumps({"types": types, "rows": rows, "named": named, "since": since}))
