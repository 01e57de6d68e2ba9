// SPDX-License-Identifier: Apache-2.0
/// The numbers of puts near the greatest number.

#include <gtest/gtest.h>

#include <thread>

#include "repo/backend/backend_wrapper.h"
#include "repo/records/records.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class PutNumbers : public testing::Test {
 protected:
  /// As if puts had given all numbers up to this one.
  void open_after(VersionNumber last) {
    open();
    ASSERT_TRUE(backend_->apply({Backend::Put{high_water_key("net"), std::to_string(last)}}));
    open();
  }
  void open() {
    repository_.reset();
    repository_ = open_or_die(std::make_unique<BackendWrapper>(backend_));
  }
  TestVersion next() { return make_version("net", test_id(++sequence_), architecture_, nullptr, {}, random_); }

  std::uint64_t sequence_ = 0;
  std::mt19937_64 random_{5};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({10, 20});
  std::shared_ptr<Backend> backend_ = make_memory_backend();
  std::unique_ptr<ProviderRepository> repository_;
};

TEST_F(PutNumbers, AModelWithoutNumbersIsRefusedBeforeItsBytesAreAskedFor) {
  open_after(kVersionNumberMax);
  const auto bytes_of = [](std::uint32_t) -> Result<Bytes> {
    ADD_FAILURE() << "bytes were asked for";
    return fail(Code::unavailable, "no");
  };
  EXPECT_TRUE(is_refused(repository_->put(next().manifest, bytes_of, {}), Code::out_of_space, "net"));
  EXPECT_EQ(repository_->wanted(next().manifest, {}).error().code(), Code::out_of_space);
}

TEST_F(PutNumbers, TheLastOneIsGivenOnce) {
  open_after(kVersionNumberMax - 1);
  const TestVersion slow = next();
  const TestVersion quick = next();
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    if (tensor == 1) {
      std::jthread([&] { EXPECT_EQ(put(*repository_, quick)->number, kVersionNumberMax); }).join();
    }
    return Bytes(slow.bytes[tensor]);
  };
  EXPECT_EQ(repository_->put(slow.manifest, bytes_of, {}).error().code(), Code::out_of_space);
  EXPECT_EQ(repository_->versions("net")->size(), 1u);
}

TEST_F(PutNumbers, OnlyAProviderOfSeveralTakesWhatItsRegistrarGave) {
  open();
  TestVersion placed = next();
  placed.manifest.name.number = kVersionNumberMax;
  const Repository::PutOptions options{.placed = Placed{.placement = 1}};
  EXPECT_EQ(put(*repository_, placed, options).error().code(), Code::invalid_argument);
  const SharedRecord placement{.key = "placement", .value = "some"};
  ASSERT_TRUE(repository_->change_shared_records({}, std::span(&placement, 1)));
  EXPECT_TRUE(put(*repository_, placed, options));
}

}  // namespace
}  // namespace freshet
