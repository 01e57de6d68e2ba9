# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer publishes what it trains: Trainer(…, callbacks=[PublishCallback("my-model")]). Copy it into your code."""
import lightning

import freshet
import freshet.torch


class PublishCallback(lightning.Callback):
    """Publishes every so many batches, and at the end. In a run of several ranks only rank 0 has a publisher."""

    def __init__(self, name, every=100):
        self.name, self.every = name, every
        self.publisher = None
        self.published = 0

    def on_train_start(self, trainer, module):
        self.published = trainer.global_step
        if trainer.is_global_zero and self.publisher is None:  # A second fit() goes on with the first one's.
            self.publisher = freshet.Publisher(self.name)

    def publish(self, trainer, module):
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        freshet.torch.publish(self.publisher, module, step=trainer.global_step, metrics=metrics)
        self.published = trainer.global_step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step - self.published >= self.every:
            self.publish(trainer, module)

    def on_train_end(self, trainer, module):
        if self.published != trainer.global_step:
            self.publish(trainer, module)

    def close(self):
        """After fit(), when servers that come late need the model no more."""
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None
