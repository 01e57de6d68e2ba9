// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the channels' tests serve from: tensors with bytes of their own, leases, and books about every open fetch. Each
/// answer lies in memory of its own, which is spoilt as soon as the channel has let go of it, so that a channel that
/// reads on is found out by what arrives.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "tests/support/seeded_bytes.h"
#include "transport/channel/channel.h"

namespace freshet::channel {

using test::seeded_bytes;

/// Any thread, once set up.
class MemorySource final : public FetchSource {
 public:
  static constexpr protocol::SessionId kSession = 7;
  static constexpr LeaseId kLease = 0xfeed'f00d'1234'5678;
  static constexpr VersionNumber kVersion = 3;

  /// One tensor of each size. kLease is granted.
  explicit MemorySource(const std::vector<std::uint64_t>& sizes) {
    for (const std::uint64_t bytes : sizes) tensors_.push_back(seeded_bytes(bytes, 1 + tensors_.size()));
    grant(kLease, kSession);
  }

  const std::vector<std::byte>& tensor(std::uint32_t index) const { return tensors_[index]; }
  /// What stands for a delta of that tensor: the channels do not look into it.
  std::vector<std::byte> delta(std::uint32_t index, const SegmentName& base) const {
    return seeded_bytes(tensors_[index].size() / 3, base.writer.sequence * 1000 + index);
  }
  /// What a piece should come as, when deltas are made wherever a base is named.
  std::vector<std::byte> expected(const Piece& piece) const {
    if (piece.base) return delta(piece.tensor, *piece.base);
    const auto from = tensors_[piece.tensor].begin() + static_cast<std::ptrdiff_t>(piece.offset);
    return {from, from + static_cast<std::ptrdiff_t>(piece.bytes)};
  }

  void grant(LeaseId lease, protocol::SessionId session) {
    const MutexLock lock(mutex_);
    leases_[lease] = session;
  }
  void revoke(LeaseId lease) {
    const MutexLock lock(mutex_);
    leases_.erase(lease);
  }
  /// Answers for that tensor fail from now on.
  void fail_tensor(std::uint32_t tensor) {
    const MutexLock lock(mutex_);
    failing_ = tensor;
  }

  /// From now on dense answers come in while they are sent: each look at one finds so many bytes more, the first none.
  void let_trickle(std::uint64_t bytes_per_look) {
    const MutexLock lock(mutex_);
    trickle_ = bytes_per_look;
  }

  /// While held, deltas are being made without an end.
  void hold_deltas(bool held) {
    const MutexLock lock(mutex_);
    holding_ = held;
    changed_.notify_all();
  }

  std::size_t open_now() const {
    const MutexLock lock(mutex_);
    return open_;
  }
  std::size_t opened() const {
    const MutexLock lock(mutex_);
    return opened_;
  }
  /// False when that did not come about in time.
  [[nodiscard]] bool wait_until_open(std::size_t count, Duration patience = std::chrono::seconds(60)) const {
    const Time deadline = system_clock().now() + patience;
    const MutexLock lock(mutex_);
    while (open_ != count) {
      if (!changed_.wait_until(mutex_, deadline)) return open_ == count;
    }
    return true;
  }
  /// What channels did wrong, one line each.
  std::string faults() const {
    const MutexLock lock(mutex_);
    return faults_;
  }

  Result<std::unique_ptr<OpenFetch>> open(const FetchRequest& request) override {
    const MutexLock lock(mutex_);
    const auto lease = leases_.find(request.lease);
    if (lease == leases_.end() || lease->second != request.session || request.version != kVersion) {
      return fail(Code::failed_precondition, format("lease {} is not of session {}", request.lease, request.session));
    }
    for (const Piece& piece : request.pieces) {
      if (piece.tensor >= tensors_.size()) {
        return fail(Code::invalid_argument, format("there is no tensor {}", piece.tensor));
      }
      const std::uint64_t bytes = tensors_[piece.tensor].size();
      if (piece.offset > bytes || piece.bytes > bytes - piece.offset) {
        return fail(Code::invalid_argument, format("a piece lies past the end of tensor {}", piece.tensor));
      }
    }
    ++opened_;
    ++open_;
    changed_.notify_all();
    return std::make_unique<Fetch>(*this, request.pieces);
  }

 private:
  /// Memory that fills with what belongs there whenever somebody looks.
  class Trickle final : public ComingAnswer {
   public:
    Trickle(std::vector<std::byte>& memory, std::uint64_t bytes_per_look)
        : whole_(std::exchange(memory, std::vector<std::byte>(memory.size(), std::byte{0xcc}))),
          memory_(memory),
          bytes_per_look_(bytes_per_look) {}
    Result<std::uint64_t> bytes_there() const override {
      const MutexLock lock(mutex_);
      const std::uint64_t came = std::min<std::uint64_t>(looks_++ * bytes_per_look_, whole_.size());
      std::copy_n(whole_.begin(), came, memory_.begin());
      return came;
    }

   private:
    const std::vector<std::byte> whole_;
    const MutableBytes memory_;
    const std::uint64_t bytes_per_look_;
    mutable Mutex mutex_;
    mutable std::uint64_t looks_ FRESHET_GUARDED_BY(mutex_) = 0;
  };

  class Fetch final : public OpenFetch {
   public:
    Fetch(MemorySource& source, std::vector<Piece> pieces) : source_(source), pieces_(std::move(pieces)) {}
    ~Fetch() override {
      for (auto& [piece, bytes] : answers_) spoil(bytes);
      const MutexLock lock(source_.mutex_);
      --source_.open_;
      source_.changed_.notify_all();
    }
    Result<Answer> answer(std::size_t piece) override {
      const Piece& wanted = pieces_.at(piece);
      std::uint64_t trickle = 0;
      {
        const MutexLock lock(source_.mutex_);
        trickle = source_.trickle_;
        while (wanted.base && source_.holding_) source_.changed_.wait(source_.mutex_);
        if (source_.failing_ == wanted.tensor) return fail(Code::io_error, "the test lets this tensor fail");
      }
      if (!wanted.base && wanted.bytes > kCopiedBytesMax && trickle == 0) {
        return Answer{.encoding = Encoding::dense,
                      .bytes = Bytes(source_.tensors_[wanted.tensor]).subspan(wanted.offset, wanted.bytes)};
      }
      const auto [at, fresh] = answers_.emplace(piece, source_.expected(wanted));
      if (!fresh) source_.fault(format("piece {} was asked for twice", piece));
      std::shared_ptr<const Trickle> coming;
      if (trickle > 0 && !wanted.base) coming = std::make_shared<const Trickle>(at->second, trickle);
      return Answer{.encoding = wanted.base ? Encoding::delta : Encoding::dense,
                    .bytes = at->second,
                    .coming = std::move(coming)};
    }
    void release(std::size_t piece) override {
      const Piece& wanted = pieces_.at(piece);
      if (!wanted.base && wanted.bytes > kCopiedBytesMax) return;
      const auto at = answers_.find(piece);
      if (at == answers_.end()) return source_.fault(format("piece {} was released, and not being sent", piece));
      spoil(at->second);
      answers_.erase(at);
    }

   private:
#ifdef __SANITIZE_THREAD__
    /// Copying more takes ThreadSanitizer longer than a peer may be silent.
    static constexpr std::uint64_t kCopiedBytesMax = 1 << 20;
#else
    static constexpr std::uint64_t kCopiedBytesMax = ~std::uint64_t{0};
#endif
    static void spoil(std::vector<std::byte>& bytes) {
      if (!bytes.empty()) std::memset(bytes.data(), 0xdd, bytes.size());
    }

    MemorySource& source_;
    const std::vector<Piece> pieces_;
    std::map<std::size_t, std::vector<std::byte>> answers_;
  };

  void fault(const std::string& what) {
    const MutexLock lock(mutex_);
    faults_ += what + "\n";
  }

  std::vector<std::vector<std::byte>> tensors_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<LeaseId, protocol::SessionId> leases_ FRESHET_GUARDED_BY(mutex_);
  std::optional<std::uint32_t> failing_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t trickle_ FRESHET_GUARDED_BY(mutex_) = 0;  ///< 0: everything is there.
  bool holding_ FRESHET_GUARDED_BY(mutex_) = false;
  std::size_t open_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::size_t opened_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::string faults_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::channel
