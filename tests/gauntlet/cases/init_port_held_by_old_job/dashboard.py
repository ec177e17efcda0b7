import socketserver
import sys


class Line(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"ok " + line)


socketserver.ThreadingTCPServer.daemon_threads = True
with socketserver.ThreadingTCPServer(("", int(sys.argv[1])), Line) as server:
    open("dashboard.ready", "w").close()
    server.serve_forever()
