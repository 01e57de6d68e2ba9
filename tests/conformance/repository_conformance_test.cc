// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/repository_houses.h"

namespace freshet {
namespace {

const RepositoryCase kMemoryRepository{
    .name = "memory",
    .make = [] { return std::make_unique<LocalHouse>([](const std::string&) { return make_memory_backend(); }); }};
const RepositoryCase kRocksRepository{.name = "rocksdb", .make = [] {
                                        return std::make_unique<LocalHouse>([](const std::string& folder) {
                                          auto opened = open_rocks_backend({.folder = folder});
                                          FRESHET_CHECK(opened.has_value());
                                          return std::move(*opened);
                                        });
                                      }};
const RepositoryCase kRemote{.name = "remote", .make = [] { return std::make_unique<RemoteHouse>(); }};
const RepositoryCase kCluster{
    .name = "three_providers", .make = [] { return std::make_unique<ClusterHouse>(); }, .several = true};

INSTANTIATE_TEST_SUITE_P(Repositories, RepositoryConformance,
                         testing::Values(kMemoryRepository, kRocksRepository, kRemote, kCluster),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet
