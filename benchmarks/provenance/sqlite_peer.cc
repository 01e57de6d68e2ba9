// SPDX-License-Identifier: Apache-2.0
#include <sqlite3.h>

#include "benchmarks/provenance/peers.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr const char* kSchema =
    "PRAGMA journal_mode=WAL;"
    "CREATE TABLE versions (version INTEGER PRIMARY KEY, ancestor INTEGER, model TEXT, quality REAL,"
    " inherited_bytes INTEGER, own_bytes INTEGER, retired INTEGER);";
constexpr const char* kLineage =
    "WITH RECURSIVE line(version) AS (SELECT ?1 UNION ALL SELECT v.ancestor FROM line JOIN versions v USING (version)"
    " WHERE v.ancestor <> 0)"
    " SELECT v.version, v.ancestor, v.model, v.quality, v.inherited_bytes, v.own_bytes, v.retired"
    " FROM line JOIN versions v USING (version)";
// Versions of a repository grow from ancestor to child, so the greatest common one is the most recent.
constexpr const char* kMrca =
    "WITH RECURSIVE a(version) AS (SELECT ?1 UNION ALL SELECT v.ancestor FROM a JOIN versions v USING (version)"
    " WHERE v.ancestor <> 0),"
    " b(version) AS (SELECT ?2 UNION ALL SELECT v.ancestor FROM b JOIN versions v USING (version)"
    " WHERE v.ancestor <> 0)"
    " SELECT max(version) FROM (SELECT version FROM a INTERSECT SELECT version FROM b)";

class SqlitePeer final : public LineagePeer {
 public:
  ~SqlitePeer() override {
    sqlite3_finalize(lineage_);
    sqlite3_finalize(mrca_);
    sqlite3_close(database_);
  }

  Status open(const std::string& path) {
    if (sqlite3_open(path.c_str(), &database_) != SQLITE_OK) return failed();
    FRESHET_TRY(execute(kSchema));
    FRESHET_TRY(prepare(kLineage, &lineage_));
    return prepare(kMrca, &mrca_);
  }

  Status fill(const Family& family) {
    FRESHET_TRY(execute("BEGIN"));
    for (std::uint64_t version = 1; version <= family.versions(); ++version) {
      FRESHET_TRY(execute(format("INSERT INTO versions VALUES ({}, {}, '{}', 0.5, 1000000, 50000, 0)", version,
                                 family.ancestor[version], model_name())));
    }
    return execute("COMMIT");
  }

  Result<std::uint64_t> mrca(std::uint64_t a, std::uint64_t b) override {
    sqlite3_bind_int64(mrca_, 1, static_cast<sqlite3_int64>(a));
    sqlite3_bind_int64(mrca_, 2, static_cast<sqlite3_int64>(b));
    if (sqlite3_step(mrca_) != SQLITE_ROW) return fail(failed().error());
    const auto common = static_cast<std::uint64_t>(sqlite3_column_int64(mrca_, 0));
    sqlite3_reset(mrca_);
    return common;
  }

  Result<std::uint64_t> lineage(std::uint64_t of) override {
    sqlite3_bind_int64(lineage_, 1, static_cast<sqlite3_int64>(of));
    std::uint64_t rows = 0;
    int step = SQLITE_ROW;
    while ((step = sqlite3_step(lineage_)) == SQLITE_ROW) {
      const bool is_named = sqlite3_column_text(lineage_, 2) != nullptr && sqlite3_column_double(lineage_, 3) > 0;
      if (is_named && sqlite3_column_int64(lineage_, 4) > 0 && sqlite3_column_int64(lineage_, 5) > 0) ++rows;
    }
    sqlite3_reset(lineage_);
    if (step != SQLITE_DONE) return fail(failed().error());
    return rows;
  }

 private:
  Status failed() { return fail(Code::io_error, format("SQLite: {}", sqlite3_errmsg(database_))); }
  Status execute(const std::string& text) {
    return sqlite3_exec(database_, text.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK ? Status() : failed();
  }
  Status prepare(const char* text, sqlite3_stmt** statement) {
    return sqlite3_prepare_v2(database_, text, -1, statement, nullptr) == SQLITE_OK ? Status() : failed();
  }

  sqlite3* database_ = nullptr;
  sqlite3_stmt* lineage_ = nullptr;
  sqlite3_stmt* mrca_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<LineagePeer>> open_sqlite_peer(const std::string& folder, const Family& family) {
  auto peer = std::make_unique<SqlitePeer>();
  FRESHET_TRY(peer->open(folder + "/versions.sqlite"));
  FRESHET_TRY(peer->fill(family));
  return peer;
}

}  // namespace freshet::benchmarks
