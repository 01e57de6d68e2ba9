// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A long line between two hosts of a lab, for kernels that have no netem: each end is a TUN device in its namespace,
/// and a thread per direction carries the packets across as the DelayLine says.
///
/// With `big_packets` the devices take segments of up to 64 KiB, as a network card with segmentation offload does: one
/// read and one write for 44 frames. Loss and reordering then hit such segments whole, so a line that has any carries
/// single frames.

#include <memory>
#include <string>
#include <thread>

#include "core/base/mutex.h"
#include "tests/support/net/lab/delay_line.h"
#include "tests/support/net/lab/network_namespace.h"

namespace freshet::lab {

struct DelayLinkOptions {
  LineShape there;  ///< From the first host to the second.
  LineShape back;
  std::string device = "line0";  ///< Its name at both ends.
  std::string first_address;     ///< "10.78.0.1"; the net is a /24.
  std::string second_address;
  bool big_packets = true;
};

/// Any thread. The devices go with it.
class DelayLink {
 public:
  static Result<std::unique_ptr<DelayLink>> open(const NetworkNamespace& first, const NetworkNamespace& second,
                                                 DelayLinkOptions options);
  ~DelayLink();
  DelayLink(const DelayLink&) = delete;

  DelayLine::Counts there() const;
  DelayLine::Counts back() const;

 private:
  struct Direction {
    explicit Direction(const LineShape& shape) : line(shape) {}
    DelayLine line;  ///< The thread's own.
    mutable Mutex mutex;
    DelayLine::Counts counts FRESHET_GUARDED_BY(mutex);
    std::thread thread;
  };
  DelayLink(const LineShape& there, const LineShape& back) : there_(there), back_(back) {}
  void carry(int from, int to, Direction& direction);

  FileDescriptor first_;
  FileDescriptor second_;
  FileDescriptor stop_;  ///< An eventfd, readable once the threads are to end.
  Direction there_;
  Direction back_;
};

}  // namespace freshet::lab
