"""A task's Python, for launch.python: `rank.py -u -m clusterdp.train.worker RUN` is a rank that the fork server forks,
whose signals and end are those of this process. Any other call is one of the real Python. The fixture writes the first
line and the two names."""

import array
import json
import os
import signal
import socket
import struct
import sys

PYTHON, SERVER = "@PYTHON@", "@SERVER@"

if sys.argv[1:4] != ["-u", "-m", "clusterdp.train.worker"]:
    os.execv(PYTHON, [PYTHON, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect(SERVER)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, lambda got, frame: server.sendall(bytes([got])))
asked = json.dumps({"words": sys.argv[3:], "environ": dict(os.environ), "folder": os.getcwd()}).encode()
message = struct.pack(">I", len(asked)) + asked
files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
sent = server.sendmsg([message], files)
server.sendall(message[sent:])
code = struct.unpack(">i", server.recv(4))[0]
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
