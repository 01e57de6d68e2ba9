// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable_env.h"

namespace freshet::s3 {
namespace {

using testing::HasSubstr;

constexpr const char* kCredentialFile =
    "# comment\n"
    "[default]\n"
    "aws_access_key_id = first\n"
    "aws_secret_access_key=secret=with=equals\n"
    "\n"
    "[ search ]\r\n"
    "aws_access_key_id = second\r\n"
    "aws_secret_access_key = other\r\n"
    "aws_session_token = token\r\n"
    "[web]\nweb_identity_token_file = /token\nrole_arn = r\n"
    "[half]\naws_access_key_id = a\n"
    "[torn";

TEST(S3Credentials, AreThoseOfTheNamedPart) {
  const auto first = credentials_in(kCredentialFile, "default", "file");
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(*first, (Credentials{.access_key_id = "first", .secret_access_key = "secret=with=equals"}));
  const auto second = credentials_in(kCredentialFile, "search", "file");
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(*second, (Credentials{.access_key_id = "second", .secret_access_key = "other", .session_token = "token"}));
}

TEST(S3Credentials, TellWhatIsMissing) {
  EXPECT_TRUE(is_refused(credentials_in(kCredentialFile, "nobody", "the-file"), Code::failed_precondition,
                         "the-file [nobody]"));
  EXPECT_EQ(credentials_in(kCredentialFile, "torn", "f").error().code(), Code::failed_precondition);
  EXPECT_THAT(credentials_in(kCredentialFile, "half", "f").error().message(), HasSubstr("without a secret"));
  EXPECT_TRUE(is_refused(credentials_in(kCredentialFile, "web", "f"), Code::unsupported, "web identity"));
}

TEST(S3Credentials, VariablesGoBeforeTheFile) {
  TemporaryFolder folder;
  std::ofstream(folder / "credentials") << kCredentialFile;
  const VariableEnv both = VariableEnv::with({{"AWS_ACCESS_KEY_ID", "id"},
                                              {"AWS_SECRET_ACCESS_KEY", "secret"},
                                              {"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"},
                                              {"AWS_SHARED_CREDENTIALS_FILE", folder / "credentials"}});
  EXPECT_EQ(CredentialSource(both).credentials()->access_key_id, "id");
  const VariableEnv file =
      VariableEnv::with({{"AWS_SHARED_CREDENTIALS_FILE", folder / "credentials"}, {"AWS_PROFILE", "search"}});
  EXPECT_EQ(CredentialSource(file).credentials()->access_key_id, "second");
  EXPECT_THAT(CredentialSource(file).origin(), HasSubstr("[search]"));
}

TEST(S3Credentials, OtherKindsAreRefusedByName) {
  const VariableEnv web = VariableEnv::with({{"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"}, {"HOME", "/nowhere"}});
  EXPECT_TRUE(is_refused(CredentialSource(web).credentials(), Code::unsupported,
                         "AWS_WEB_IDENTITY_TOKEN_FILE names web identity"));
  const VariableEnv nothing = VariableEnv::with({{"HOME", "/nowhere"}});
  EXPECT_THAT(CredentialSource(nothing).credentials().error().message(),
              HasSubstr("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write /nowhere/.aws/credentials"));
  const VariableEnv half = VariableEnv::with({{"AWS_ACCESS_KEY_ID", "id"}});
  EXPECT_EQ(CredentialSource(half).credentials().error().code(), Code::failed_precondition);
  const VariableEnv lines =
      VariableEnv::with({{"AWS_ACCESS_KEY_ID", "id\r\nx-evil: 1"}, {"AWS_SECRET_ACCESS_KEY", "s"}});
  EXPECT_THAT(CredentialSource(lines).credentials().error().message(), HasSubstr("control character"));
}

TEST(S3Credentials, AFileThatCannotBeReadIsTold) {
  TemporaryFolder folder;
  const auto refusal_of = [](const std::string& path) {
    const VariableEnv env = VariableEnv::with({{"AWS_SHARED_CREDENTIALS_FILE", path}});
    const auto refused = CredentialSource(env).credentials();
    EXPECT_EQ(refused.error().code(), Code::failed_precondition) << path;
    EXPECT_THAT(refused.error().message(), HasSubstr(path));
    return refused.error().message();
  };
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(folder / "pipe"), HasSubstr("it is not a regular file")) << "nobody writes into it";
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("it is not a regular file"));
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(refusal_of(folder / "loop"), HasSubstr("cannot be read: Too many levels of symbolic links"));
  std::ofstream(folder / "large") << std::string((1 << 20) + 1, '#');
  EXPECT_THAT(refusal_of(folder / "large"), HasSubstr("it is larger than 1 MiB"));
  EXPECT_THAT(refusal_of(folder / "nothing"), HasSubstr("there are no credentials"));
}

TEST(S3Credentials, AChangedFileIsReadAgain) {
  TemporaryFolder folder;
  const std::string path = folder / "credentials";
  std::ofstream(path) << "[default]\naws_access_key_id=old\naws_secret_access_key=s\n";
  const VariableEnv env = VariableEnv::with({{"AWS_SHARED_CREDENTIALS_FILE", path}});
  CredentialSource source(env);
  const auto old = source.credentials();
  ASSERT_TRUE(old);
  EXPECT_EQ(old->access_key_id, "old");
  EXPECT_FALSE(source.renew(*old)) << "they are the same";
  std::ofstream(path) << "[default]\naws_access_key_id=newer\naws_secret_access_key=s\n";
  EXPECT_TRUE(source.renew(*old));
  EXPECT_EQ(source.credentials()->access_key_id, "newer");
  std::ofstream(path) << "[default]\naws_acc";
  EXPECT_FALSE(source.renew(*old)) << "a file that is being written";
  EXPECT_EQ(source.credentials()->access_key_id, "newer");
}

}  // namespace
}  // namespace freshet::s3
