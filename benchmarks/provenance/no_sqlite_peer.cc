// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/provenance/peers.h"

namespace freshet::benchmarks {

Result<std::unique_ptr<LineagePeer>> open_sqlite_peer(const std::string& /*folder*/, const Family& /*family*/) {
  return fail(Code::unsupported, "built without SQLite (Debian: libsqlite3-dev)");
}

}  // namespace freshet::benchmarks
