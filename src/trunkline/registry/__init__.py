"""The rules of a directory of channels: channels, who is on them, schemas and their versions. Pure."""
