# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer publishes what it trains: Trainer(…, callbacks=[PublishCallback("my-model")]). Copy it into your code.

With PublishCallback("my-model", repository=freshet.Repository("runs/")), fit() goes on where a run was broken off. As with
Lightning's own checkpoints, an epoch that was broken off gets its data from the beginning again.
"""
import json

import lightning

import freshet
import freshet.torch


class PublishCallback(lightning.Callback):
    """Publishes every so many batches, and at the end. In a run of several ranks only rank 0 has a publisher. `repository` stores
    each version, with the optimizers, the learning rates' schedules, the random state and where fit() is."""

    def __init__(self, name, every=100, repository=None):
        self.name, self.every, self.repository = name, every, repository
        self.publisher = self.sink = None
        self.published = self.version = 0

    def state(self, trainer):
        """What fit() goes on with, as freshet.torch takes it."""
        schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
        return {"optimizer": trainer.optimizers, "scheduler": schedulers or None}

    def on_fit_start(self, trainer, module):
        if self.publisher is not None:
            return  # A second fit() goes on with the first one's.
        resumed = None
        if self.repository is not None and self.name in self.repository.models():
            resumed = self.repository.resume(self.name)
            freshet.torch.resume(resumed, module, **self.state(trainer))
            trainer.fit_loop.load_state_dict(json.loads(self.repository.tags(str(resumed.version))["fit_loop"]))
        if trainer.is_global_zero:
            self.publisher = freshet.Publisher(self.name, resume=resumed and (self.repository, str(resumed.version)))
            self.sink = self.repository.sink(self.name) if self.repository is not None else None

    def on_train_start(self, trainer, module):
        self.published = trainer.global_step

    def publish(self, trainer, module):
        how = {"metrics": {name: value.item() for name, value in trainer.callback_metrics.items()}}
        if self.repository is not None:
            how.update(self.state(trainer), tags={"fit_loop": json.dumps(trainer.fit_loop.state_dict())})
        receipt = freshet.torch.publish(self.publisher, module, step=trainer.global_step, **how)
        self.version = receipt and receipt.version or self.version
        self.published = trainer.global_step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step - self.published >= self.every:
            self.publish(trainer, module)

    def on_train_end(self, trainer, module):
        if self.published != trainer.global_step:
            self.publish(trainer, module)
        self.wait_until_stored()

    def wait_until_stored(self):
        if self.sink is not None and self.version:
            self.sink.wait_for(self.version, timeout=600)

    def close(self):
        """After fit(), when servers that come late need the model no more."""
        self.wait_until_stored()
        for each in (self.sink, self.publisher):
            if each is not None:
                each.close()
        self.publisher = self.sink = None
