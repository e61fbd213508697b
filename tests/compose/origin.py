"""The service that sandboxes may reach in the stack's tests: HTTPS and HTTP, standard library only.

usage: origin.py CERTIFICATE-AND-KEY
"""

import http.server
import ssl
import sys
import threading


class Answer(http.server.BaseHTTPRequestHandler):
    """Says what it was asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"origin answers {self.headers['Host']} {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main(certificate: str) -> None:
    plain = http.server.ThreadingHTTPServer(("", 80), Answer)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    secure = http.server.ThreadingHTTPServer(("", 443), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    secure.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
