// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/kernels.h"

// FRESHET_FATBIN: the file that nvcc made. FRESHET_NO_FATBIN: why there is none. core/gpu/kernels/CMakeLists.txt gives
// one.
#if defined(FRESHET_FATBIN)

// The assembler reads the file: no compiler sees its 350 KB. The driver wants them aligned.
asm(".pushsection .rodata,\"a\",@progbits\n"
    ".balign 64\n"
    ".hidden freshet_gpu_fatbin_begin\n"
    ".globl freshet_gpu_fatbin_begin\n"
    "freshet_gpu_fatbin_begin:\n"
    ".incbin \"" FRESHET_FATBIN
    "\"\n"
    ".hidden freshet_gpu_fatbin_end\n"
    ".globl freshet_gpu_fatbin_end\n"
    "freshet_gpu_fatbin_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const std::byte freshet_gpu_fatbin_begin[] __attribute__((visibility("hidden")));
extern const std::byte freshet_gpu_fatbin_end[] __attribute__((visibility("hidden")));
}

namespace freshet::gpu {

std::span<const std::byte> fatbin() { return {freshet_gpu_fatbin_begin, freshet_gpu_fatbin_end}; }
std::string_view why_no_fatbin() { return {}; }

}  // namespace freshet::gpu

#else

namespace freshet::gpu {

std::span<const std::byte> fatbin() { return {}; }
std::string_view why_no_fatbin() { return FRESHET_NO_FATBIN; }

}  // namespace freshet::gpu

#endif
