// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bindings/runtime/repository_folder.h"
#include "repo/files/import.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

using testing::HasSubstr;

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_repository("memory:", {.access = RepositoryAccess::create});
    ASSERT_TRUE(opened) << opened.error().message();
    repository_ = std::move(*opened);
  }
  /// A version whose tensors w and m have this value.
  void store(float value, std::uint64_t step) {
    const std::vector<float> w(4, value);
    const std::vector<float> m(8, -value);
    const TensorView tensors[] = {
        {{.name = "w", .dtype = DType::f32, .shape = {4}}, bytes_of(w.data(), w.size())},
        {{.name = "m", .dtype = DType::f32, .shape = {8}, .role = Role::optimizer}, bytes_of(m.data(), m.size())}};
    auto staged = stage_put(*repository_, {.model = "net", .tensors = tensors, .step = step});
    ASSERT_TRUE(staged) << staged.error().message();
    ASSERT_TRUE(repository_->put(staged->manifest, staged->bytes_of(), staged->options));
  }
  TensorMemory memory_of(std::vector<float>& values, const std::string& name = "w") {
    return {{.name = name, .dtype = DType::f32, .shape = {values.size()}}, std::as_writable_bytes(std::span(values))};
  }

  OpenedRepository repository_;
  std::vector<float> weights_ = std::vector<float>(4);
};

TEST_F(Resume, ANewRunHasNothingToGoOnFrom) {
  const auto resumed = resume(*repository_, "net", {{memory_of(weights_)}});
  ASSERT_TRUE(resumed) << resumed.error().message();
  EXPECT_EQ(resumed->manifest, nullptr);
  EXPECT_EQ(resumed->step, 0U);
  EXPECT_EQ(weights_, std::vector<float>(4));
  EXPECT_EQ(resume(*repository_, "net@1", {{memory_of(weights_)}}).error().code(), Code::not_found);
  EXPECT_EQ(resume(*repository_, "no/model", {{memory_of(weights_)}}).error().code(), Code::invalid_argument);
}

TEST_F(Resume, TheNewestVersionOrTheNamedOneIsRead) {
  store(1, 10);
  store(2, 20);
  std::vector<float> momenta(8);
  const TensorMemory both[] = {memory_of(momenta, "m"), memory_of(weights_)};
  const auto newest = resume(*repository_, "net", both);
  ASSERT_TRUE(newest) << newest.error().message();
  EXPECT_EQ(newest->step, 20U);
  EXPECT_EQ(newest->manifest->name.number, 2U);
  EXPECT_EQ(weights_, std::vector<float>(4, 2));
  EXPECT_EQ(momenta, std::vector<float>(8, -2));
  EXPECT_EQ(views_of(both)[1].data.data(), reinterpret_cast<const std::byte*>(weights_.data()));
  const auto named = resume(*repository_, "net@1", {{memory_of(weights_)}});
  ASSERT_TRUE(named) << named.error().message();
  EXPECT_EQ(named->step, 10U);
  EXPECT_EQ(weights_, std::vector<float>(4, 1));
  // A retired version is none to go on from.
  ASSERT_TRUE(repository_->retire({.model = "net", .number = 2}, {}));
  EXPECT_EQ(resume(*repository_, "net", both)->step, 10U);
}

TEST_F(Resume, OtherTensorsAreNamedAndNothingIsWritten) {
  store(1, 10);
  std::vector<float> five(5);
  EXPECT_TRUE(is_refused(resume(*repository_, "net", {{memory_of(five)}}), Code::failed_precondition,
                         "resume net@1: tensor w is f32[5], and f32[4] in the version"));
  const TensorMemory first[] = {memory_of(weights_), memory_of(five, "absent")};
  EXPECT_THAT(resume(*repository_, "net", first).error().message(),
              HasSubstr("tensor absent: the version has no tensor"));
  EXPECT_EQ(weights_, std::vector<float>(4));
  TensorMemory small = memory_of(weights_);
  small.data = small.data.first(8);
  EXPECT_EQ(resume(*repository_, "net", {{small}}).error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace freshet
