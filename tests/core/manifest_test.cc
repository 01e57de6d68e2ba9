// SPDX-License-Identifier: Apache-2.0
#include "core/model/manifest.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/base/format.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

std::shared_ptr<const Architecture> small_architecture() {
  Architecture::Parts parts{.name = "tiny",
                            .tensors = {{.name = "a.kernel", .shape = {8, 4}},
                                        {.name = "a.bias", .shape = {4}, .role = Role::buffer},
                                        {.name = "m",
                                         .dtype = DType::bf16,
                                         .shape = {2, 0},
                                         .role = Role::optimizer,
                                         .slice = Slice{{4, 8}, {2, 8}, 3}}},
                            .framework_config = "{\"keras\": \"3.0\"}",
                            .extra = "{\"made_by\":\"hand\"}"};
  parts.layers = {
      {.name = "x", .class_name = "Input", .config = "{\"shape\": [null, 8], \"dtype\": \"f32\"}"},
      {.name = "a",
       .class_name = "Dense",
       .config = "{\"units\": 4.0}",
       .framework_config = "Dense(4)",
       .inputs = {{0, 0}},
       .tensors = {{"kernel", 0}, {"bias", 1}}},
      {.name = "b", .class_name = "Dense", .inputs = {{0, 1}}, .tensors_of = 1},
      {.name = "c", .class_name = "Sum", .inputs = {{1, 0}, {2, 0}}, .tensors = {{"m", 2}}, .commutative = true}};
  parts.outputs = {{3, 0}};
  auto built = Architecture::build(std::move(parts));
  EXPECT_TRUE(built) << built.error().message();
  return *built;
}

Manifest small_manifest(std::shared_ptr<const Architecture> architecture) {
  const VersionId before{.run = {1, 2}, .incarnation = 3, .sequence = 4};
  const VersionId id{.run = {1, 2}, .incarnation = 3, .sequence = 5};
  const std::size_t tensors = architecture->tensors().size();
  Manifest manifest{.name = {"demo", 17},
                    .id = id,
                    .ancestor = before,
                    .ancestor_name = {"demo", 16},
                    .step = 1234,
                    .created_unix_ns = -5,
                    .metrics = {{"loss", 0.25},
                                {"accuracy", std::nan("7")},
                                {"zero", -0.0},
                                {"most", -std::numeric_limits<double>::infinity()}},
                    .tags = {{"branch", "main"}, {"note", "zwölf\nlines"}},
                    .architecture = std::move(architecture)};
  const std::uint32_t changed[] = {1};
  manifest.owners = OwnerMap::all_written_by(before, tensors).with_written(id, changed);
  for (std::size_t i = 0; i < tensors; ++i) manifest.digests.push_back({.low = i, .high = ~i});
  return manifest;
}

TEST(Manifest, EverythingRoundTrips) {
  const Manifest manifest = small_manifest(small_architecture());
  const std::vector<std::byte> bytes = encode(manifest);
  EXPECT_EQ(architecture_digest_of(bytes), manifest.architecture->digest());
  const auto architecture = decode_architecture(manifest.architecture->encoded());
  ASSERT_TRUE(architecture) << architecture.error().message();
  const auto decoded = decode_manifest(bytes, *architecture);
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(decoded->name, manifest.name);
  EXPECT_EQ(decoded->id, manifest.id);
  EXPECT_EQ(decoded->ancestor, manifest.ancestor);
  EXPECT_EQ(decoded->ancestor_name, manifest.ancestor_name);
  EXPECT_EQ(decoded->step, manifest.step);
  EXPECT_EQ(decoded->created_unix_ns, manifest.created_unix_ns);
  EXPECT_EQ(decoded->tags, manifest.tags);
  EXPECT_EQ(decoded->owners, manifest.owners);
  EXPECT_EQ(decoded->digests, manifest.digests);
  ASSERT_EQ(decoded->metrics.size(), manifest.metrics.size());
  for (std::size_t i = 0; i < manifest.metrics.size(); ++i) {
    EXPECT_EQ(decoded->metrics[i].first, manifest.metrics[i].first);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(decoded->metrics[i].second),
              std::bit_cast<std::uint64_t>(manifest.metrics[i].second));
  }
  EXPECT_EQ(encode(*decoded), bytes);
}

TEST(Architecture, EncodedFormRoundTrips) {
  const auto built = small_architecture();
  const auto decoded = decode_architecture(built->encoded());
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ((*decoded)->digest(), built->digest());
  EXPECT_TRUE(std::ranges::equal((*decoded)->slots(), built->slots()));
  EXPECT_TRUE(std::ranges::equal((*decoded)->tensors(), built->tensors()));
  EXPECT_TRUE(std::ranges::equal((*decoded)->layers(), built->layers()));
  EXPECT_EQ((*decoded)->parts().framework_config, "{\"keras\": \"3.0\"}");
  EXPECT_EQ((*decoded)->parts().extra, "{\"made_by\":\"hand\"}");
  EXPECT_EQ((*decoded)->layers()[1].config, "{\"units\":4}");
  EXPECT_EQ((*decoded)->tensor_named("a.bias"), 1u);
  EXPECT_EQ((*decoded)->bytes(), 8 * 4 * 4 + 4 * 4);
}

TEST(Manifest, WorksFromAnyAlignment) {
  const Manifest manifest = small_manifest(small_architecture());
  const std::vector<std::byte> bytes = encode(manifest);
  const Bytes architecture = manifest.architecture->encoded();
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> moved(shift + bytes.size());
    std::copy(bytes.begin(), bytes.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_TRUE(decode_manifest(Bytes(moved).subspan(shift), manifest.architecture));
    std::vector<std::byte> moved_architecture(shift + architecture.size());
    std::copy(architecture.begin(), architecture.end(),
              moved_architecture.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_TRUE(decode_architecture(Bytes(moved_architecture).subspan(shift)));
  }
}

/// Every flipped byte and every truncation must be one clear error.
template <typename Decode>
void expect_damage_is_noticed(Bytes bytes, const Decode& decode) {
  std::vector<std::byte> damaged(bytes.begin(), bytes.end());
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    for (const auto mask : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
      damaged[i] ^= mask;
      EXPECT_TRUE(is_refused(decode(Bytes(damaged)), Code::corrupt)) << "byte " << i;
      damaged[i] ^= mask;
    }
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(is_refused(decode(bytes.first(length)), Code::corrupt)) << "length " << length;
  }
  damaged.push_back(std::byte{0});
  ASSERT_FALSE(decode(Bytes(damaged)));
}

TEST(Manifest, EveryFlippedByteAndEveryTruncationIsNoticed) {
  const Manifest manifest = small_manifest(small_architecture());
  const std::vector<std::byte> bytes = encode(manifest);
  expect_damage_is_noticed(bytes, [&](Bytes damaged) { return decode_manifest(damaged, manifest.architecture); });
  expect_damage_is_noticed(bytes, [](Bytes damaged) { return architecture_digest_of(damaged); });
}

TEST(Architecture, EveryFlippedByteAndEveryTruncationIsNoticed) {
  expect_damage_is_noticed(small_architecture()->encoded(), decode_architecture);
}

TEST(Manifest, IsForItsOwnArchitectureOnly) {
  const Manifest manifest = small_manifest(small_architecture());
  const auto other = Architecture::guess_chain({{.name = "w", .shape = {3}}});
  ASSERT_TRUE(other);
  EXPECT_TRUE(is_refused(decode_manifest(encode(manifest), *other), Code::corrupt));
}

TEST(Manifest, CheckNamesWhatIsWrong) {
  const Manifest good = small_manifest(small_architecture());
  ASSERT_TRUE(check(good));
  const auto message_of = [&good](const auto& spoil) {
    Manifest manifest = good;
    spoil(manifest);
    const Status status = check(manifest);
    return status ? std::string("accepted") : status.error().message();
  };
  const auto expect = [&](const auto& spoil, std::string_view part) {
    const std::string message = message_of(spoil);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect([](Manifest& m) { m.architecture = nullptr; }, "architecture");
  expect([](Manifest& m) { m.name.model = "../x"; }, "model name");
  expect([](Manifest& m) { m.name.number = 0; }, "count from 1");
  expect([](Manifest& m) { m.ancestor.reset(); }, "ancestor");
  expect([](Manifest& m) { m.ancestor_name.number = 0; }, "ancestor");
  expect([](Manifest& m) { m.metrics.emplace_back("loss", 1.0); }, "two metrics are named loss");
  expect([](Manifest& m) { m.metrics.emplace_back("a\nb", 1.0); }, "control");
  expect([](Manifest& m) { m.tags.emplace_back("branch", ""); }, "two tags are named branch");
  expect([](Manifest& m) { m.tags.emplace_back("t", "\xff"); }, "UTF-8");
  expect([](Manifest& m) { m.tags.emplace_back("t", std::string(kTagValueBytesMax + 1, 'x')); }, "limit");
  expect([](Manifest& m) { m.digests.pop_back(); }, "2 digests for 3 tensors");
  expect([](Manifest& m) { m.owners = OwnerMap::all_written_by(m.id, 2); }, "2 owners");
  expect([](Manifest& m) { m.owners = OwnerMap({{m.id, 1}, {m.id, 1}, {m.id, 2}}); }, "tensor 0");
  expect(
      [](Manifest& m) {
        for (std::size_t i = 0; i <= kMetricsMax; ++i) m.metrics.emplace_back(format("m{}", i), 0.0);
      },
      "limit");
}

TEST(OwnerMap, SaysWhatASubscriberMustFetch) {
  const VersionId first{.run = {1, 1}, .incarnation = 1, .sequence = 1};
  const VersionId second{.run = {1, 1}, .incarnation = 1, .sequence = 2};
  const OwnerMap base = OwnerMap::all_written_by(first, 4);
  const std::uint32_t changed[] = {3, 1};
  const OwnerMap next = base.with_written(second, changed);
  EXPECT_EQ(next.changed_since(base), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(base.changed_since(next), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(next.changed_since(OwnerMap()), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(next.changed_since(next).empty());
  EXPECT_EQ(next.owned_by(second), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(next.owned_by(first), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(next.writers(), (std::vector<VersionId>{first, second}));
  EXPECT_EQ(next[1], (SegmentName{second, 1}));
  EXPECT_EQ(base[1], (SegmentName{first, 1}));
}

TEST(GuessChain, IsOneLayerPerPrefix) {
  const auto chain = Architecture::guess_chain({{.name = "enc.0.weight", .shape = {2}},
                                                {.name = "enc.1.weight", .shape = {2}},
                                                {.name = "enc.0.bias", .shape = {2}},
                                                {.name = "w", .shape = {2}},
                                                {.name = "w.w", .shape = {2}}});
  ASSERT_TRUE(chain) << chain.error().message();
  EXPECT_TRUE((*chain)->parts().guessed);
  const auto layers = (*chain)->layers();
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].name, "enc.0");
  EXPECT_EQ(layers[0].tensors, (std::vector<LayerTensor>{{"weight", 0}, {"bias", 2}}));
  EXPECT_TRUE(layers[0].inputs.empty());
  EXPECT_EQ(layers[1].name, "enc.1");
  EXPECT_EQ(layers[1].inputs, (std::vector<LayerInput>{{0, 0}}));
  EXPECT_EQ(layers[2].name, "w");
  EXPECT_EQ(layers[2].tensors, (std::vector<LayerTensor>{{"w", 3}, {"w.w", 4}}));
  EXPECT_EQ((*chain)->parts().outputs, (std::vector<LayerInput>{{2, 0}}));
  EXPECT_TRUE(Architecture::guess_chain({}));
}

}  // namespace
}  // namespace freshet
