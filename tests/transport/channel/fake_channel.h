// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A data channel within one thread: a server's answers, moved in chunks by progress(), with what can go wrong on the
/// way under the test's control. And a source that has a model's versions, and may lie about them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "core/delta/element_delta.h"
#include "core/model/manifest.h"
#include "transport/channel/channel.h"

namespace freshet::test {

/// The versions of a model whose tensors are bf16, changed element by element.
class ChangingModel {
 public:
  explicit ChangingModel(std::vector<std::size_t> elements) {
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < elements.size(); ++t) {
      specs.push_back({.name = format("t{}.weight", t), .dtype = DType::bf16, .shape = {elements[t]}});
      values_.emplace_back(elements[t]);
      for (std::size_t i = 0; i < elements[t]; ++i) values_[t][i] = static_cast<std::uint16_t>(i * 7 + t);
    }
    architecture_ = *Architecture::guess_chain(std::move(specs));
  }

  /// The next version, with every `stride`th element of the tensors in `changed` another one.
  std::shared_ptr<const Manifest> next(const std::vector<std::uint32_t>& changed, std::size_t stride = 100) {
    ++number_;
    const VersionId id{.run = {.high = 1, .low = 2}, .incarnation = 3, .sequence = number_};
    const bool first = owners_.size() == 0;
    owners_ = first ? OwnerMap::all_written_by(id, values_.size()) : owners_.with_written(id, changed);
    for (const std::uint32_t tensor : changed) {
      for (std::size_t i = number_ % stride; i < values_[tensor].size(); i += stride) ++values_[tensor][i];
    }
    auto manifest = std::make_shared<Manifest>();
    manifest->name = {.model = "demo", .number = number_};
    manifest->id = id;
    manifest->architecture = architecture_;
    manifest->owners = owners_;
    for (std::uint32_t t = 0; t < values_.size(); ++t) {
      const Bytes bytes = bytes_of(values_[t].data(), values_[t].size());
      manifest->digests.push_back(digest_of(bytes));
      segments_.try_emplace(owners_[t], bytes.begin(), bytes.end());
    }
    manifests_[number_] = manifest;
    return manifest;
  }

  std::shared_ptr<const Manifest> at(VersionNumber number) const { return manifests_.at(number); }
  const std::vector<std::byte>& segment(const SegmentName& name) const { return segments_.at(name); }
  bool has(const SegmentName& name) const { return segments_.contains(name); }
  void forget(const SegmentName& name) { segments_.erase(name); }
  std::vector<std::uint32_t> all() const {
    std::vector<std::uint32_t> tensors(values_.size());
    for (std::uint32_t t = 0; t < tensors.size(); ++t) tensors[t] = t;
    return tensors;
  }

 private:
  std::uint64_t number_ = 0;
  std::shared_ptr<const Architecture> architecture_;
  std::vector<std::vector<std::uint16_t>> values_;
  OwnerMap owners_;
  std::map<SegmentName, std::vector<std::byte>> segments_;
  std::map<VersionNumber, std::shared_ptr<const Manifest>> manifests_;
};

/// Answers from a ChangingModel, with deltas where it has the base.
class ModelSource final : public channel::FetchSource {
 public:
  explicit ModelSource(const ChangingModel& model) : model_(model) {}

  bool deltas = true;
  /// May change an answer before it is sent.
  std::function<void(const channel::Piece&, channel::Encoding, std::vector<std::byte>&)> tamper;
  std::optional<Error> refuse;
  std::uint64_t dense_answers = 0;
  std::uint64_t delta_answers = 0;
  std::vector<channel::FetchRequest> requests;

  Result<std::unique_ptr<channel::OpenFetch>> open(const channel::FetchRequest& request) override {
    requests.push_back(request);
    if (refuse) return fail(*refuse);
    return std::make_unique<Fetch>(*this, request);
  }

 private:
  class Fetch final : public channel::OpenFetch {
   public:
    Fetch(ModelSource& source, channel::FetchRequest request) : source_(source), request_(std::move(request)) {}
    Result<Answer> answer(std::size_t index) override {
      const channel::Piece& piece = request_.pieces[index];
      const Manifest& manifest = *source_.model_.at(request_.version);
      const SegmentName& target = manifest.owners[piece.tensor];
      const std::vector<std::byte>& bytes = source_.model_.segment(target);
      channel::Encoding encoding = channel::Encoding::dense;
      std::vector<std::byte>& answer = answers_[index];
      if (source_.deltas && piece.base && source_.model_.has(*piece.base)) {
        const DeltaSpec spec{.dtype = DType::bf16, .base = *piece.base, .target = target};
        if (auto delta = encode_delta(spec, source_.model_.segment(*piece.base), bytes, bytes.size())) {
          answer = std::move(*delta);
          encoding = channel::Encoding::delta;
        }
      }
      if (encoding == channel::Encoding::dense) {
        answer.assign(bytes.begin() + static_cast<std::ptrdiff_t>(piece.offset),
                      bytes.begin() + static_cast<std::ptrdiff_t>(piece.offset + piece.bytes));
      }
      ++(encoding == channel::Encoding::dense ? source_.dense_answers : source_.delta_answers);
      if (source_.tamper) source_.tamper(piece, encoding, answer);
      return Answer{.encoding = encoding, .bytes = answer};
    }
    void release(std::size_t index) override { answers_.erase(index); }

   private:
    ModelSource& source_;
    const channel::FetchRequest request_;
    std::map<std::size_t, std::vector<std::byte>> answers_;
  };

  const ChangingModel& model_;
};

class FakeClient final : public channel::ChannelClient {
 public:
  explicit FakeClient(channel::FetchSource& source, std::size_t chunk_bytes = 1000)
      : source_(source), chunk_bytes_(chunk_bytes) {}

  bool stalled = false;
  std::optional<std::uint64_t> dies_after_bytes;
  std::size_t most_in_flight = 0;

  channel::ChannelKind kind() const override { return channel::ChannelKind::zmq; }
  Status fetch(channel::FetchRequest request, channel::FetchSink& sink) override {
    if (dead_) return fail(Code::unavailable, "the connection is dead");
    if (requests_.size() >= channel::kRequestsInFlightMax) return fail(Code::out_of_space, "too many requests");
    EXPECT_GT(request.request, last_request_);
    last_request_ = request.request;
    requests_.push_back({.request = std::move(request), .sink = &sink});
    most_in_flight = std::max(most_in_flight, requests_.size());
    return {};
  }
  void cancel(std::uint64_t request) override { cancelled_.insert(request); }
  int descriptor() const override { return -1; }

  /// Moves one chunk.
  Result<bool> progress(std::chrono::microseconds) override {
    if (requests_.empty() || stalled) return false;
    if (dies_after_bytes && received_ >= *dies_after_bytes) return die();
    Under& under = requests_.front();
    if (cancelled_.contains(under.request.request)) return end(fail(Code::cancelled, "cancelled")), true;
    if (under.open == nullptr) {
      auto open = source_.open(under.request);
      if (!open) return end(fail(open.error())), true;
      under.open = std::move(*open);
    }
    if (under.piece == under.request.pieces.size()) return end({}), true;
    if (!under.answer) {
      const auto can = under.open->can_answer(under.piece);
      if (!can) return end(fail(can.error())), true;
      if (!*can) return false;
      auto answer = under.open->answer(under.piece);
      if (!answer) return end(fail(answer.error())), true;
      under.answer = *answer;
      auto place = under.sink->place(under.request.request, under.piece, answer->encoding, answer->bytes.size());
      if (!place) return end(fail(place.error())), true;
      under.place = place->bytes;
    }
    std::uint64_t there = under.answer->bytes.size();
    if (under.answer->coming != nullptr) {
      const auto came = under.answer->coming->bytes_there();
      if (!came) return end(fail(came.error())), true;
      there = std::min(there, *came);
    }
    const std::size_t bytes = std::min(chunk_bytes_, there - under.sent);
    if (bytes == 0) return false;
    std::ranges::copy(under.answer->bytes.subspan(under.sent, bytes),
                      under.place.begin() + static_cast<std::ptrdiff_t>(under.sent));
    under.sent += bytes;
    received_ += bytes;
    under.sink->on_bytes(under.request.request, under.piece, under.sent);
    if (under.sent < under.answer->bytes.size()) return true;
    under.sink->on_piece_done(under.request.request, under.piece);
    under.open->release(under.piece);
    under.answer.reset();
    under.sent = 0;
    ++under.piece;
    return true;
  }
  std::uint64_t bytes_received() const override { return received_; }

 private:
  struct Under {
    channel::FetchRequest request;
    channel::FetchSink* sink = nullptr;
    std::unique_ptr<channel::OpenFetch> open;
    std::size_t piece = 0;
    std::optional<channel::OpenFetch::Answer> answer;
    MutableBytes place;
    std::size_t sent = 0;
  };
  void end(Status status) {
    const Under under = std::move(requests_.front());
    requests_.pop_front();
    under.sink->on_request_done(under.request.request, std::move(status));
  }
  Result<bool> die() {
    dead_ = true;
    while (!requests_.empty()) end(fail(Code::unavailable, "the connection broke"));
    return fail(Code::unavailable, "the connection broke");
  }

  channel::FetchSource& source_;
  const std::size_t chunk_bytes_;
  std::deque<Under> requests_;
  std::set<std::uint64_t> cancelled_;
  std::uint64_t last_request_ = 0;
  std::uint64_t received_ = 0;
  bool dead_ = false;
};

}  // namespace freshet::test
