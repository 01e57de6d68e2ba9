#pragma once

/// How other threads wake a loop that polls: an eventfd.

#include "core/file_descriptor.h"
#include "core/result.h"

namespace freshet {

/// wake(): any thread. The rest: the loop's.
class Wake {
 public:
  static Result<Wake> open();

  int descriptor() const { return descriptor_.get(); }
  void wake() const;
  void acknowledge() const;  ///< Before looking at what was asked for.

 private:
  explicit Wake(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

}  // namespace freshet
