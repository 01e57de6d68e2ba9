// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A backend that fails where a test says, around any other backend. Calls that write are counted from 1; at the chosen
/// one it fails or "crashes": after a crash nothing works any more, blobs that were not committed are gone, and the
/// test opens the inner backend again as a restarted process would.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "repo/backend/backend_wrapper.h"

namespace freshet {

class FaultBackend final : public BackendWrapper {
 public:
  enum class Fault {
    none,
    fail_once,             ///< The call does nothing and answers `code`; later ones work.
    fail_until_recovered,  ///< It and all later writes fail, until recover().
    crash_before,          ///< The process ends before the call has done anything.
    crash_midway,          ///< A commit left half of its blobs; any other call did nothing.
    crash_after,           ///< The call did its work, but nobody heard of it.
  };
  struct Plan {
    Fault fault = Fault::none;
    std::uint64_t at = 0;  ///< Which write call.
    Code code = Code::out_of_space;
  };

  FaultBackend(std::shared_ptr<Backend> inner, Plan plan) : BackendWrapper(std::move(inner)), plan_(plan) {}

  void set_plan(Plan plan) {
    plan_ = plan;
    calls_ = 0;
  }
  std::uint64_t calls() const { return calls_; }
  bool crashed() const { return crashed_; }

  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_TRY(alive());
    return std::make_unique<Writer>(*this);
  }
  Status erase_blob(std::string_view key) override {
    return guarded([&] { return inner().erase_blob(key); }, [] {});
  }
  Status reclaim() override {
    return guarded([&] { return inner().reclaim(); }, [] {});
  }
  Status apply(const Batch& batch) override {
    return guarded([&] { return inner().apply(batch); }, [] {});
  }
  Status recover() override {
    FRESHET_TRY(alive());
    failing_ = false;
    return inner().recover();
  }

  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    FRESHET_TRY(alive());
    return inner().read_blob(key, offset, out);
  }
  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    FRESHET_TRY(alive());
    return inner().read_and_digest(key, out);
  }
  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    FRESHET_TRY(alive());
    return inner().list_blobs(each);
  }
  Result<std::string> get(std::string_view key) const override {
    FRESHET_TRY(alive());
    return inner().get(key);
  }
  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    FRESHET_TRY(alive());
    return inner().scan(prefix, each);
  }

 private:
  class Writer final : public BlobWriter {
   public:
    explicit Writer(FaultBackend& backend) : backend_(backend) {}
    Status write(std::string_view key, Bytes bytes) override {
      return backend_.guarded(
          [&]() -> Status {
            blobs_.emplace_back(std::string(key), std::vector<std::byte>(bytes.begin(), bytes.end()));
            return {};
          },
          [] {});
    }
    Result<Digest> write_and_digest(std::string_view key, Bytes bytes) override {
      FRESHET_TRY(write(key, bytes));
      return digest_of(blobs_.back().second);
    }
    Status commit() override {
      return backend_.guarded([&] { return write_through(blobs_.size()); },
                              [&] { static_cast<void>(write_through(blobs_.size() / 2)); });
    }

   private:
    Status write_through(std::size_t count) {
      FRESHET_ASSIGN(const std::unique_ptr<BlobWriter> writer, backend_.inner().write_blobs());
      for (std::size_t i = 0; i < count; ++i) FRESHET_TRY(writer->write(blobs_[i].first, blobs_[i].second));
      return writer->commit();
    }
    FaultBackend& backend_;
    std::vector<std::pair<std::string, std::vector<std::byte>>> blobs_;
  };

  Status alive() const {
    if (crashed_) return fail(Code::unavailable, "the process has crashed");
    return {};
  }

  template <typename Work, typename Midway>
  Status guarded(Work work, Midway midway) {
    FRESHET_TRY(alive());
    if (failing_) return fail(plan_.code, "injected, still");
    if (++calls_ != plan_.at) return work();
    switch (plan_.fault) {
      case Fault::none: return work();
      case Fault::fail_until_recovered: failing_ = true; [[fallthrough]];
      case Fault::fail_once: return fail(plan_.code, "injected");
      case Fault::crash_before: break;
      case Fault::crash_midway: midway(); break;
      case Fault::crash_after: static_cast<void>(work()); break;
    }
    crashed_ = true;
    return alive();
  }

  Plan plan_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<bool> failing_{false};
  std::atomic<bool> crashed_{false};
};

}  // namespace freshet
