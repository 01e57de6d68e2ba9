// SPDX-License-Identifier: Apache-2.0
/// A whole repository in Ceph, under the conformance suite of repositories.

#include "tests/conformance/repository_houses.h"
#include "tests/repo/rados/shared_cluster.h"

namespace freshet {
namespace {

const RepositoryCase kRadosRepository{.name = "rados", .make = [] {
                                        return std::make_unique<LocalHouse>([](const std::string& folder) {
                                          auto opened = open_in_ceph(folder);
                                          FRESHET_CHECK(opened.has_value());
                                          return std::move(*opened);
                                        });
                                      }};

INSTANTIATE_TEST_SUITE_P(Repositories, RepositoryConformance, testing::Values(kRadosRepository),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet
