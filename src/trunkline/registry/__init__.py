"""The rules of a directory of channels: channels and their members, schemas and their versions. Pure."""
