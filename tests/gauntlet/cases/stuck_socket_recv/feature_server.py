import socketserver
import sys


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if int(line) < 100:
                self.wfile.write(b"%d\n" % (int(line) * 2))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


with Server(("127.0.0.1", int(sys.argv[1])), Handler) as server:
    print("ready", flush=True)
    server.serve_forever()
