"""A rank is waiting for a network peer

## What it is

The rank is blocked in a socket that has nothing to do with the process group: a download, an object store, an
experiment tracker, a database. The finding gives the peer's address where it can be seen.

## Why it happens

Most network calls in Python wait without limit unless told otherwise. A proxy that drops idle connections, or a
service that stops answering, then stops the rank, and with it the job.

## How to fix it

Give every network call a timeout and a number of tries. Keep logging and uploads out of the training thread,
and on one rank.

## Before

```python
blob = requests.get(url).content                   # may wait for ever
```

## After

```python
blob = requests.get(url, timeout=(5, 60)).content  # to connect, between two pieces of data
```
"""

SEVERITY = "warning"
NEXT = ("give the network call a timeout; check the named peer",)
