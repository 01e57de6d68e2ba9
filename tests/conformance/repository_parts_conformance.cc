// SPDX-License-Identifier: Apache-2.0
/// Puts by parts (repo/part_puts.h).

#include <algorithm>
#include <thread>

#include "core/base/format.h"
#include "repo/part_puts.h"
#include "tests/conformance/repository_conformance.h"

namespace freshet {
namespace {

std::shared_ptr<const Architecture> parts_architecture() {
  return *Architecture::guess_chain({{.name = "a.matrix", .dtype = DType::f32, .shape = {60, 35}},
                                     {.name = "b.block", .dtype = DType::u16, .shape = {6, 10, 7, 3}},
                                     {.name = "c.line", .dtype = DType::u8, .shape = {50'000}},
                                     {.name = "d.scalar", .dtype = DType::f64, .shape = {}},
                                     {.name = "e.empty", .dtype = DType::f32, .shape = {4, 0}}});
}

PutToken begun(PartPuts& parts, const TestVersion& version) {
  const Manifest& manifest = version.manifest;
  const auto token = parts.begin_put(manifest.name.model, manifest.id, manifest.architecture);
  EXPECT_TRUE(token) << token.error().message();
  return token ? *token : PutToken();
}

/// The manifest as a process has it that knows no bytes: zeros for the digests of what the version writes.
Manifest without_digests(const TestVersion& version) {
  Manifest manifest = version.manifest;
  for (const std::uint32_t tensor : manifest.owners.owned_by(manifest.id)) manifest.digests[tensor] = {};
  return manifest;
}

TensorPart whole(const TestVersion& version, std::uint32_t tensor) {
  return whole_part(*version.manifest.architecture, tensor, version.bytes[tensor]);
}

Status bring(PartPuts& parts, const PutToken& token, const TestVersion& version,
             const std::vector<std::uint32_t>& tensors) {
  std::vector<TensorPart> all;
  for (const std::uint32_t tensor : tensors) all.push_back(whole(version, tensor));
  return parts.put_parts(token, all);
}

Status bring(PartPuts& parts, const PutToken& token, const TensorPart& part) {
  return parts.put_parts(token, std::span(&part, 1));
}

void expect_nothing(const Repository& repository) {
  EXPECT_TRUE(repository.models()->empty());
  const auto report = repository.verify(std::nullopt, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->corrupt.empty());
  EXPECT_TRUE(report->unneeded.empty());
}

/// Copies a slice out, element by element: the oracle of slice_parts.
std::vector<std::byte> cut_out(const TensorSpec& spec, const Shape& offset, const Shape& extent, Bytes bytes) {
  std::vector<std::byte> out;
  const std::uint64_t element = word_bytes_of(spec.dtype);
  for (std::uint64_t i = 0; i < bytes.size() / element; ++i) {
    std::uint64_t rest = i;
    bool is_inside = true;
    for (std::size_t axis = spec.shape.size(); axis-- > 0;) {
      const std::uint64_t at = rest % spec.shape[axis];
      rest /= spec.shape[axis];
      is_inside = is_inside && at >= offset[axis] && at < offset[axis] + extent[axis];
    }
    if (!is_inside) continue;
    const Bytes one = bytes.subspan(i * element, element);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

struct Box {
  std::uint32_t tensor = 0;
  Shape offset;
  Shape extent;
};

/// Cuts every tensor into boxes at random.
std::vector<Box> random_boxes(const Architecture& architecture, std::mt19937_64& random) {
  std::vector<Box> done;
  for (std::uint32_t tensor = 0; tensor < architecture.tensors().size(); ++tensor) {
    const Shape& shape = architecture.tensors()[tensor].shape;
    std::vector<Box> waiting{{.tensor = tensor, .offset = Shape(shape.size()), .extent = shape}};
    while (!waiting.empty()) {
      Box box = std::move(waiting.back());
      waiting.pop_back();
      const std::size_t axis = shape.empty() ? 0 : random() % shape.size();
      if (shape.empty() || random() % 3 == 0 || box.extent[axis] < 2) {
        done.push_back(std::move(box));
        continue;
      }
      Box other = box;
      box.extent[axis] = 1 + random() % (box.extent[axis] - 1);
      other.offset[axis] += box.extent[axis];
      other.extent[axis] -= box.extent[axis];
      waiting.push_back(std::move(box));
      waiting.push_back(std::move(other));
    }
  }
  std::ranges::shuffle(done, random);
  return done;
}

}  // namespace

TEST_P(RepositoryConformance, SlicesOfSeveralThreadsMakeTheVersionThatOnePutMakes) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  for (int round = 0; round < 5; ++round) {
    const TestVersion one = stored(version("one"));
    TestVersion other = one;
    other.manifest.id = test_id(++sequence_);
    other.manifest.name = {.model = "parts"};
    other.manifest.owners = OwnerMap::all_written_by(other.manifest.id, other.bytes.size());
    const PutToken token = begun(parts, other);
    const std::vector<Box> boxes = random_boxes(*architecture_, random_);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        // What travels to another process is text.
        const auto known = parse_put_token(to_string(token));
        ASSERT_TRUE(known) << known.error().message();
        for (std::size_t i = rank; i < boxes.size(); i += 3) {
          const Box& box = boxes[i];
          const auto bytes =
              cut_out(architecture_->tensors()[box.tensor], box.offset, box.extent, other.bytes[box.tensor]);
          const auto slice = slice_parts(*architecture_, box.tensor, box.offset, box.extent, bytes);
          ASSERT_TRUE(slice) << slice.error().message();
          const Status brought = parts.put_parts(*known, *slice);
          ASSERT_TRUE(brought) << brought.error().message();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(repository().latest("parts").value_or(0) == static_cast<VersionNumber>(round));
    const auto name = parts.commit_put(token, without_digests(other), {.quality = 0.5});
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(*name, (VersionName{.model = "parts", .number = static_cast<VersionNumber>(round + 1)}));
    other.manifest.name = *name;
    expect_bytes(other);
    const auto record = repository().get(*name);
    ASSERT_TRUE(record) << record.error().message();
    EXPECT_EQ(record->manifest.digests, one.manifest.digests);
    EXPECT_EQ(record->quality, 0.5);
    EXPECT_EQ(record->own_bytes, architecture_->bytes());
  }
  expect_sound();
}

TEST_P(RepositoryConformance, OnlyPartsOfWhatChangedCome) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion first = stored(version("net"));
  TestVersion second = version("net", &first, {0, 3});
  const PutToken token = begun(parts, second);
  ASSERT_TRUE(bring(parts, token, second, {0, 3}));
  const auto digests = parts.part_digests(token);
  ASSERT_TRUE(digests) << digests.error().message();
  EXPECT_EQ(*digests, (std::vector<std::optional<Digest>>{second.manifest.digests[0], std::nullopt, std::nullopt,
                                                          second.manifest.digests[3], std::nullopt}));
  const auto name = parts.commit_put(token, without_digests(second), {});
  ASSERT_TRUE(name) << name.error().message();
  second.manifest.name = *name;
  expect_bytes(second);
  const auto owners = repository().owners(net(2));
  ASSERT_TRUE(owners) << owners.error().message();
  EXPECT_EQ(owners->at(0).owner, net(2));
  EXPECT_EQ(owners->at(1).owner, net(1));
  EXPECT_EQ(repository().lineage(net(2))->at(0).ancestor, net(1));
  expect_sound();
}

/// What a caller finds unchanged is inherited, though its parts came.
TEST_P(RepositoryConformance, PartsOfStoredTensorsAreDropped) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion first = stored(version("net"));
  TestVersion second = version("net", &first, {0, 2});
  const PutToken token = begun(parts, second);
  ASSERT_TRUE(bring(parts, token, second, {0, 1, 2, 3}));
  const auto digests = parts.part_digests(token);
  ASSERT_TRUE(digests) << digests.error().message();
  EXPECT_EQ(digests->at(1), first.manifest.digests[1]);
  const auto name = parts.commit_put(token, without_digests(second), {});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(repository().get(*name)->own_bytes, second.bytes[0].size() + second.bytes[2].size());
  expect_sound();
}

TEST_P(RepositoryConformance, AHoleIsNamed) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion one = version("net");
  const PutToken token = begun(parts, one);
  ASSERT_TRUE(bring(parts, token, one, {0, 1}));
  TensorPart most = whole(one, 2);
  most.length -= 3;
  most.bytes = most.bytes.first(most.length);
  ASSERT_TRUE(bring(parts, token, most));
  EXPECT_TRUE(is_refused(parts.commit_put(token, without_digests(one), {}), Code::failed_precondition,
                         "c.line: its bytes from 49997 to 50000"));
  EXPECT_TRUE(is_refused(parts.part_digests(token), Code::failed_precondition));
  const TensorPart rest{
      .tensor = 2, .offset = most.length, .length = 3, .bytes = Bytes(one.bytes[2]).subspan(most.length)};
  ASSERT_TRUE(bring(parts, token, rest));
  // The digest is known, and a tensor is missing all the same.
  EXPECT_TRUE(is_refused(parts.commit_put(token, one.manifest, {}), Code::failed_precondition, "d.scalar"));
  EXPECT_TRUE(is_refused(parts.commit_put(token, without_digests(one), {}), Code::failed_precondition));
  expect_nothing(repository());
  ASSERT_TRUE(bring(parts, token, one, {3}));
  TestVersion done = one;
  const auto name = parts.commit_put(token, without_digests(one), {});
  ASSERT_TRUE(name) << name.error().message();
  done.manifest.name = *name;
  expect_bytes(done);
}

TEST_P(RepositoryConformance, PartsThatContradictAreRefused) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion one = version("net");
  const PutToken token = begun(parts, one);
  ASSERT_TRUE(bring(parts, token, one, {0}));
  EXPECT_TRUE(bring(parts, token, one, {0})) << "the same again";
  TestVersion other = one;
  other.bytes[0][17] ^= std::byte{1};
  EXPECT_TRUE(is_refused(bring(parts, token, other, {0}), Code::already_exists, "a.matrix"));
  // A column that begins inside of what came.
  const auto column = slice_parts(*architecture_, 1, {0, 2, 0, 0}, {6, 3, 7, 3}, Bytes(one.bytes[1]).first(756));
  ASSERT_TRUE(column) << column.error().message();
  ASSERT_TRUE(parts.put_parts(token, *column));
  const auto overlap = slice_parts(*architecture_, 1, {5, 4, 0, 0}, {1, 2, 7, 3}, Bytes(one.bytes[1]).first(84));
  ASSERT_TRUE(overlap) << overlap.error().message();
  EXPECT_TRUE(is_refused(parts.put_parts(token, *overlap), Code::already_exists, "b.block"));
  TensorPart torn = whole(one, 2);
  torn.digest = Digest{.low = 1, .high = 2};
  EXPECT_TRUE(is_refused(bring(parts, token, torn), Code::corrupt));
  TensorPart outside = whole(one, 2);
  outside.offset = 1;
  EXPECT_TRUE(is_refused(bring(parts, token, outside), Code::invalid_argument));
  TensorPart unknown = whole(one, 2);
  unknown.tensor = 5;
  EXPECT_TRUE(is_refused(bring(parts, token, unknown), Code::invalid_argument));
  TensorPart short_of = whole(one, 2);
  short_of.bytes = short_of.bytes.first(10);
  EXPECT_TRUE(is_refused(bring(parts, token, short_of), Code::invalid_argument));
  EXPECT_TRUE(parts.abort_put(token));
  expect_nothing(repository());
}

TEST_P(RepositoryConformance, BytesThatAreNotTheManifestsAreRefused) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion one = version("net");
  const PutToken token = begun(parts, one);
  ASSERT_TRUE(bring(parts, token, one, {0, 1, 2, 3}));
  Manifest manifest = one.manifest;
  manifest.digests[2].low ^= 1;
  EXPECT_TRUE(is_refused(parts.commit_put(token, manifest, {}), Code::corrupt));
  expect_nothing(repository());
  EXPECT_TRUE(parts.commit_put(token, one.manifest, {}));
  expect_sound();
}

TEST_P(RepositoryConformance, TokensAreOfOnePut) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion one = version("net");
  const TestVersion two = version("other");
  const PutToken token = begun(parts, one);
  ASSERT_TRUE(bring(parts, token, one, {0, 1, 2, 3}));
  ASSERT_NE(token, begun(parts, two));
  // Another model's, another version's, another architecture's.
  Manifest wrong = one.manifest;
  wrong.name.model = "other";
  EXPECT_TRUE(is_refused(parts.commit_put(token, wrong, {}), Code::invalid_argument));
  wrong = one.manifest;
  wrong.id = test_id(99);
  wrong.owners = OwnerMap::all_written_by(wrong.id, one.bytes.size());
  EXPECT_FALSE(parts.commit_put(token, wrong, {}));
  const auto small = test_architecture({10});
  std::mt19937_64 random(1);
  EXPECT_TRUE(
      is_refused(parts.commit_put(token, make_version("net", one.manifest.id, small, nullptr, {}, random).manifest, {}),
                 Code::invalid_argument));
  PutToken unknown = token;
  unknown.low ^= 1;
  EXPECT_TRUE(is_refused(bring(parts, unknown, one, {0}), Code::not_found));
  EXPECT_TRUE(is_refused(parts.part_digests(unknown), Code::not_found));
  EXPECT_TRUE(is_refused(parts.commit_put(unknown, one.manifest, {}), Code::not_found));
  EXPECT_TRUE(is_refused(parts.abort_put(unknown), Code::not_found));
  expect_nothing(repository());

  ASSERT_TRUE(parts.commit_put(token, one.manifest, {}));
  EXPECT_TRUE(is_refused(bring(parts, token, one, {0}), Code::not_found));
  EXPECT_TRUE(is_refused(parts.abort_put(token), Code::not_found));
  // Its answer may have been lost.
  EXPECT_TRUE(is_refused(parts.commit_put(token, one.manifest, {}), Code::already_exists));
  EXPECT_TRUE(is_refused(parts.begin_put("net", one.manifest.id, architecture_), Code::already_exists));
  EXPECT_TRUE(is_refused(parts.begin_put("a model", test_id(100), architecture_), Code::invalid_argument));
  expect_sound();
}

TEST_P(RepositoryConformance, AnAbortedPutLeavesNothing) {
  architecture_ = parts_architecture();
  PartPuts& parts = repository().part_puts();
  const TestVersion one = version("net");
  const PutToken token = begun(parts, one);
  ASSERT_TRUE(bring(parts, token, one, {0, 1, 2, 3}));
  ASSERT_TRUE(parts.abort_put(token));
  EXPECT_TRUE(is_refused(bring(parts, token, one, {0}), Code::not_found));
  EXPECT_TRUE(is_refused(parts.commit_put(token, one.manifest, {}), Code::not_found));
  expect_nothing(repository());
  // Of the two that put one version, one makes it.
  const PutToken first = begun(parts, one);
  const PutToken second = begun(parts, one);
  ASSERT_TRUE(bring(parts, first, one, {0, 1, 2, 3}));
  ASSERT_TRUE(bring(parts, second, one, {0, 1, 2, 3}));
  const auto made = parts.commit_put(second, one.manifest, {});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(is_refused(parts.commit_put(first, one.manifest, {}), Code::already_exists));
  EXPECT_TRUE(parts.abort_put(first));
  EXPECT_EQ(repository().latest("net").value(), made->number);
  expect_sound();
}

/// More than one upload of a client may have.
TEST_P(RepositoryConformance, LargePartsComeToo) {
  PartPuts& parts = repository().part_puts();
  architecture_ = *Architecture::guess_chain({{.name = "wide", .dtype = DType::u8, .shape = {2, 18'000'000}},
                                              {.name = "tall", .dtype = DType::u8, .shape = {200'000, 200}}});
  TestVersion one = version("net");
  const PutToken token = begun(parts, one);
  const auto bytes = [&](std::uint32_t tensor) { return Bytes(one.bytes[tensor]); };
  ASSERT_TRUE(parts.put_parts(token, *slice_parts(*architecture_, 0, {0, 0}, {2, 18'000'000}, bytes(0))));
  std::vector<std::byte> left;
  std::vector<std::byte> right;
  for (std::size_t i = 0; i < one.bytes[1].size(); ++i) (i % 200 < 120 ? left : right).push_back(one.bytes[1][i]);
  ASSERT_TRUE(parts.put_parts(token, *slice_parts(*architecture_, 1, {0, 120}, {200'000, 80}, right)));
  ASSERT_TRUE(parts.put_parts(token, *slice_parts(*architecture_, 1, {0, 0}, {200'000, 120}, left)));
  const auto name = parts.commit_put(token, without_digests(one), {});
  ASSERT_TRUE(name) << name.error().message();
  one.manifest.name = *name;
  expect_bytes(one);
}

}  // namespace freshet
