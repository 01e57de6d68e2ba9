#include "tests/conformance/channel_conformance.h"

namespace freshet::channel {
namespace {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChannelConformance);

}  // namespace
}  // namespace freshet::channel
