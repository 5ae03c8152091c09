"""The dialects in which clients send conversations and servers answer them: a folder for each."""
