"""Where pictures come from: addresses, containers and checksums. What is in the files is the business of `data`."""
