// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/provenance/peers.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

using Json = nlohmann::json;

class JsonPeer final : public LineagePeer {
 public:
  explicit JsonPeer(std::string folder) : folder_(std::move(folder)) {}

  Result<std::uint64_t> mrca(std::uint64_t a, std::uint64_t b) override {
    std::unordered_set<std::uint64_t> of_a;
    FRESHET_TRY(walk(a, [&](std::uint64_t version) { return of_a.insert(version).second; }));
    std::uint64_t common = 0;
    FRESHET_TRY(walk(b, [&](std::uint64_t version) {
      if (!of_a.contains(version)) return true;
      common = version;
      return false;
    }));
    return common;
  }

  Result<std::uint64_t> lineage(std::uint64_t of) override {
    std::uint64_t rows = 0;
    FRESHET_TRY(walk(of, [&](std::uint64_t) { return ++rows != 0; }));
    return rows;
  }

 private:
  template <typename Visit>
  Status walk(std::uint64_t version, Visit visit) {
    while (version != 0 && visit(version)) {
      std::ifstream file(format("{}/{}.json", folder_, version));
      if (!file) return fail_errno(errno, format("{}/{}.json", folder_, version));
      const Json row = Json::parse(file, nullptr, false);
      if (row.is_discarded()) return fail(Code::corrupt, "a file of ours is not what it was");
      version = row["ancestor"].get<std::uint64_t>();
    }
    return {};
  }

  const std::string folder_;
};

}  // namespace

Result<std::unique_ptr<LineagePeer>> open_json_peer(const std::string& folder, const Family& family) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (std::uint64_t version = 1; version <= family.versions(); ++version) {
    const Json row = {{"model", model_name()}, {"version", version},           {"ancestor", family.ancestor[version]},
                      {"quality", 0.5},        {"inherited_bytes", 1'000'000}, {"own_bytes", 50'000},
                      {"retired", false}};
    std::ofstream file(format("{}/{}.json", folder, version));
    if (!(file << row.dump())) return fail_errno(errno, folder);
  }
  return std::make_unique<JsonPeer>(folder);
}

}  // namespace freshet::benchmarks
