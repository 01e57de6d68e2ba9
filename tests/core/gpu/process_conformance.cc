// SPDX-License-Identifier: Apache-2.0
// Slabs between processes, and a context that is lost.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/core/gpu/gpu_conformance.h"
#include "tests/core/gpu/gpu_peer.h"
#include "tests/support/child_process.h"
#include "tests/support/this_build.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kSlabBytes = 8 << 20;  // Whole granules of any device.

TEST_P(GpuConformance, ASlabOutlivesItsExporter) {
  Peer exporter("export", GetParam(), seed_);
  Received received = exporter.slab(kSlabBytes);
  const Memory memory = must(device_->import_slab(std::move(received.descriptor), received.word));
  EXPECT_FALSE(memory.writable());
  expect_bytes(memory.address(), memory.bytes(), 9);
  exporter.process().end(SIGKILL);
  expect_bytes(memory.address(), memory.bytes(), 9);
  EXPECT_EQ(must(device_->describe(memory.address())).kind, MemoryKind::device);
}

TEST_P(GpuConformance, ADescriptorOutlivesItsExporter) {
  Peer exporter("export", GetParam(), seed_);
  Received received = exporter.slab(kSlabBytes);
  exporter.process().end(SIGKILL);
  const Memory memory = must(device_->import_slab(std::move(received.descriptor), received.word));
  expect_bytes(memory.address(), memory.bytes(), 9);
}

TEST_P(GpuConformance, AnExporterMayDieAmidACopy) {
  in_many_orders(
      [&] {
        Peer exporter("export", GetParam(), seed_);
        Received received = exporter.slab(kSlabBytes);
        const Memory imported = must(device_->import_slab(std::move(received.descriptor), received.word));
        const Memory own = must(device_->allocate(kSlabBytes));
        const Stream stream = must(device_->create_stream());
        for (std::uint64_t at = 0; at < kSlabBytes; at += kSlabBytes / 8) {
          if (at == kSlabBytes / 2) exporter.process().end(SIGKILL);
          must(device_->copy(stream.handle(), own.address() + at, imported.address() + at, kSlabBytes / 8));
        }
        finish(stream.handle());
        expect_bytes(own.address(), kSlabBytes, 9);
      },
      4);
}

TEST_P(GpuConformance, AnImporterThatIsKilledChangesNothing) {
  const Memory memory = filled(kSlabBytes, 9);
  {
    Peer importer("import", GetParam(), seed_);
    const FileDescriptor descriptor = must(device_->export_slab(memory));
    ASSERT_TRUE(send_descriptor(importer.socket(), descriptor.get(), memory.bytes()));
    EXPECT_EQ(importer.process().line(), "right");
    importer.process().end(SIGKILL);
  }
  expect_bytes(memory.address(), kSlabBytes, 9);
  write(memory.address(), test::seeded_bytes(kSlabBytes, 3));
  expect_bytes(memory.address(), kSlabBytes, 3);
}

TEST_P(GpuConformance, AnImportersMappingOutlivesTheMemory) {
  Peer importer("import", GetParam(), seed_);
  {
    const Memory memory = filled(kSlabBytes, 9);
    const FileDescriptor descriptor = must(device_->export_slab(memory));
    ASSERT_TRUE(send_descriptor(importer.socket(), descriptor.get(), memory.bytes()));
  }
  EXPECT_EQ(importer.process().line(), "right");
}

TEST_P(GpuConformance, ImportedMemoryIsReadOnly) {
  Peer exporter("export", GetParam(), seed_);
  Received received = exporter.slab(kSlabBytes);
  const Memory memory = must(device_->import_slab(std::move(received.descriptor), received.word));
  const Memory own = filled(kSlabBytes, 1);
  const Stream stream = must(device_->create_stream());
  for (const std::uint64_t at : {std::uint64_t{0}, kSlabBytes - 1}) {
    const Status refused = device_->copy(stream.handle(), memory.address() + at, own.address(), 1);
    EXPECT_EQ(code_of(refused), "invalid_argument");
    EXPECT_THAT(words_of(refused), testing::HasSubstr("the destination is read-only memory of another process"));
  }
  EXPECT_EQ(code_of(device_->export_slab(memory)), "failed_precondition");
  expect_bytes(memory.address(), memory.bytes(), 9);
}

/// A program that this process starts would keep the memory for as long as it runs.
TEST_P(GpuConformance, AnExportedDescriptorIsNotInherited) {
  const Memory memory = filled(1000, 1);
  const FileDescriptor descriptor = must(device_->export_slab(memory));
  EXPECT_EQ(::fcntl(descriptor.get(), F_GETFD), FD_CLOEXEC);
}

TEST_P(GpuConformance, OnlyItsOwnDeviceExportsMemory) {
  const Memory memory = filled(1000, 1);
  EXPECT_EQ(code_of(framework()->export_slab(memory)), "invalid_argument");
  EXPECT_EQ(code_of(device_->export_slab(Memory())), "invalid_argument");
}

TEST_P(GpuConformance, DescriptorsThatLieAreCorrupt) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor write_end(ends[1]);
  FileDescriptor memfd(::memfd_create("freshet-gpu-not", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memfd.get(), kSlabBytes), 0);
  std::vector<std::pair<const char*, FileDescriptor>> lies;
  lies.emplace_back("none", FileDescriptor());
  lies.emplace_back("a pipe", FileDescriptor(ends[0]));
  lies.emplace_back("a memfd", std::move(memfd));
  lies.emplace_back("an event", FileDescriptor(::eventfd(0, EFD_CLOEXEC)));
  lies.emplace_back("/dev/null", FileDescriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  lies.emplace_back("a folder", FileDescriptor(::open("/", O_RDONLY | O_CLOEXEC)));
  for (auto& [name, descriptor] : lies) {
    EXPECT_EQ(code_of(device_->import_slab(std::move(descriptor), kSlabBytes)), "corrupt") << name;
  }
  expect_works();
}

TEST_P(GpuConformance, SizesThatLieAreCorrupt) {
  Peer exporter("export", GetParam(), seed_);
  const Received received = exporter.slab(kSlabBytes);
  const auto code = [&](std::uint64_t bytes) {
    return code_of(device_->import_slab(FileDescriptor(::fcntl(received.descriptor.get(), F_DUPFD_CLOEXEC, 0)), bytes));
  };
  const std::uint64_t granule = device_->info().granularity;
  EXPECT_EQ(code(0), "corrupt");
  EXPECT_EQ(code(1), "corrupt");
  EXPECT_EQ(code(received.word - 1), "corrupt");
  EXPECT_EQ(code(received.word + granule), "corrupt");
  EXPECT_EQ(code(2 * received.word), "corrupt");
  EXPECT_EQ(code(std::uint64_t{1} << 60), "corrupt");
  EXPECT_EQ(code(~std::uint64_t{0} / granule * granule), "corrupt");
  EXPECT_EQ(code(received.word), "no error");
}

TEST_P(GpuConformance, AnotherDevicesSlabIsRefused) {
  if (infos_.size() < 2) GTEST_SKIP() << "one device is here";
  const auto other = must(platform_->open(infos_[1].uuid));
  const Memory there = must(other->allocate(kSlabBytes));
  EXPECT_EQ(code_of(device_->import_slab(must(other->export_slab(there)), there.bytes())), "unsupported");
}

TEST_P(GpuConformance, AStuckErrorIsSaidOnceAndStays) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  ChildProcess child(
      {test::built("tests/gpu_peer"), "stick", GetParam().is_host ? "host" : "driver", std::to_string(seed_), "-1"});
  std::vector<std::string> lines;
  for (auto line = child.line(); line; line = child.line()) lines.push_back(*line);
  EXPECT_EQ(child.wait(), 0);
  const auto counted = [&](const std::string& begin) {
    std::size_t count = 0;
    for (const auto& line : lines) count += line.starts_with(begin) ? 1 : 0;
    return count;
  };
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back(), "end");
  EXPECT_EQ(counted("log: "), 1U);
  for (const char* call : {"wait", "query", "copy", "allocate", "room", "drain"}) {
    EXPECT_EQ(counted(std::string(call) + ": failed_precondition: "), std::string(call) == "wait" ? 2U : 1U) << call;
  }
  for (const auto& line : lines)
    EXPECT_TRUE(line == "end" || line.find("ILLEGAL_ADDRESS") != std::string::npos) << line;
}

TEST_P(GpuConformance, AForkedChildCannotUseItsParentsDevice) {
  const Memory memory = filled(1000, 1);
  const Stream stream = must(device_->create_stream());
  const pid_t child = ::fork();
  if (child == 0) {
    std::byte local{};
    bool refused = !device_->copy(stream.handle(), memory.address(), &local, 1) && !device_->allocate(1) &&
                   !device_->create_event();
    refused = refused && device_->drain(kPatience).error().code() == Code::failed_precondition;
    { const Memory ends = std::move(const_cast<Memory&>(memory)); }  // Its end is the parent's business.
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_bytes(memory.address(), 1000, 1);
}

}  // namespace
}  // namespace freshet::gpu
