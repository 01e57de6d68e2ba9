// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/placement/numbers.h"

#include <gtest/gtest.h>

#include "repo/backend/backend_wrapper.h"
#include "repo/records/records.h"
#include "repo/registrar/registrar_records.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class Numbers : public testing::Test {
 protected:
  Result<VersionNumber> next(VersionNumber wanted = 0) {
    return cluster::next_number(*registrar_, placement_, "net", wanted);
  }
  /// As a record may be that an older build wrote.
  void set_last(VersionNumber last) {
    const SharedRecord record = number_record("net", last);
    ASSERT_TRUE(backend_->apply({Backend::Put{std::string(kSharedPrefix) + record.key, *record.value}}));
  }
  void SetUp() override {
    const SharedRecord placed{.key = kPlacementKey, .value = placement_.encode()};
    ASSERT_TRUE(registrar_->change_shared_records({}, std::span(&placed, 1)));
  }

  const Placement placement_ = Placement::first({{.id = "p0", .address = "mem://p0"}}).value();
  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::unique_ptr<ProviderRepository> registrar_ = open_or_die(std::make_unique<BackendWrapper>(backend_));
};

TEST_F(Numbers, EndAtTheGreatest) {
  set_last(kVersionNumberMax - 1);
  EXPECT_EQ(next().value(), kVersionNumberMax);
  for (const VersionNumber last : {kVersionNumberMax, ~VersionNumber{0}}) {
    set_last(last);
    EXPECT_TRUE(is_refused(next(), Code::out_of_space, "net"));
  }
}

TEST_F(Numbers, OneThatIsWantedLeavesRoom) {
  EXPECT_EQ(next(kGivenNumberMax + 1).error().code(), Code::invalid_argument);
  EXPECT_EQ(next(kGivenNumberMax).value(), kGivenNumberMax);
  EXPECT_EQ(next(5).value(), kGivenNumberMax + 1);
}

}  // namespace
}  // namespace freshet
