// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How other threads wake a loop that polls: an eventfd.

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

/// Sleeps until a descriptor is readable, or its other side is gone, or until then; false for the latter. May answer
/// false somewhat earlier: ask the clock.
bool wait_readable(int descriptor, Time deadline);
/// The same until it can be written.
bool wait_writable(int descriptor, Time deadline);

/// wake(): any thread. The rest: the loop's.
class Wake {
 public:
  static Result<Wake> open();

  int descriptor() const { return descriptor_.get(); }
  void wake() const;
  void acknowledge() const;  ///< Before looking at what was asked for.
  /// Sleeps until then or until woken, whichever comes first; true for the latter. Doesn't acknowledge.
  bool wait_until(Time deadline) const { return wait_readable(descriptor_.get(), deadline); }

 private:
  explicit Wake(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

}  // namespace freshet
