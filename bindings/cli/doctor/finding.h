// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The findings of `freshet doctor`: one for each thing that Freshet uses where it is there. Probes look; they start
/// nothing, leave nothing behind but the host directory's empty folder, and give up within a second.

#include <string>
#include <string_view>
#include <utility>

namespace freshet::cli {

enum class Health {
  ok,
  limited,
  missing,    ///< From this machine.
  not_built,  ///< This program was built without it.
};
std::string_view name_of(Health health);

struct Finding {
  std::string check;  ///< "memory_lock": stable, for scripts.
  Health health = Health::ok;
  std::string found;    ///< What is there, in a few words.
  std::string enables;  ///< What it is for.
  std::string get;      ///< How to get it, or more of it; empty when there is nothing to do.

  /// This check, of a part that this program was built without; `package` is what a build needs.
  Finding not_built(std::string_view package) const {
    return with(Health::not_built, "this program was built without it",
                "apt install " + std::string(package) + ", and build Freshet again");
  }
  /// This check with what came of it.
  Finding with(Health how, std::string what, std::string advice = "") const {
    return {check, how, std::move(what), enables, std::move(advice)};
  }
};

/// Processor, memory and kernel.
Finding find_vector_code();
Finding find_memory_lock();
Finding find_huge_pages();
Finding find_shared_memory();
Finding find_host_directory();
/// The one that FRESHET_DIRECTORY names.
Finding find_directory();

/// Tiering.
Finding find_tier_reader();
Finding find_tier_kernel();
Finding find_tiers();

/// Libraries that are loaded when they are there.
Finding find_ucx();
Finding find_cuda();
Finding find_nccl();
Finding find_ceph();
Finding find_s3();

/// Services.
Finding find_redis();

}  // namespace freshet::cli
