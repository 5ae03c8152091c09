"""What every table is made of: the metadata that they belong to, and the types that they share."""

from sqlalchemy import BigInteger, Integer, MetaData, String

metadata = MetaData()

ID = String(64)
LABEL = String(40)
#: 64 bit; every integer of SQLite is, and its migrations need not copy a table for it
LONG = BigInteger().with_variant(Integer, "sqlite")
