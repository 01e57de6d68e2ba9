#include "tests/conformance/directory_conformance.h"

#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

class HostWorld final : public DirectoryWorld {
 public:
  Result<std::unique_ptr<Directory>> open() override { return open_directory(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

const DirectoryCase kHost{.name = "host",
                          .make = [] { return std::unique_ptr<DirectoryWorld>(std::make_unique<HostWorld>()); }};

INSTANTIATE_TEST_SUITE_P(Directories, DirectoryConformance, ::testing::Values(kHost),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet
